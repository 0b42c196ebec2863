// SPDX-License-Identifier: Apache-2.0
#include "llampi/tokenizer/make_tokenizer.hpp"

#include "support/fake_tokenizers.hpp"
#include "support/files.hpp"

namespace llampi::test {
namespace {

TEST(Tokenizer, BytesGoThereAndBack) {
  const auto tokenizer = tokenizer::make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->name(), "bytes");
  EXPECT_EQ(tokenizer->vocabulary(), 256);
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  const auto ids = tokenizer->encode(text);
  ASSERT_EQ(ids.size(), 256U);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[static_cast<std::size_t>(byte)], byte);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_TRUE(tokenizer->encode("").empty());
}

TEST(Tokenizer, RefusesIdsThatAreNoBytes) {
  const auto tokenizer = tokenizer::make_tokenizer("bytes");
  for (const std::int32_t id : {-1, 256, 128000}) {
    const std::vector<std::int32_t> ids{65, id};
    EXPECT_THAT(user_error([&] { tokenizer->decode(ids); }), ::testing::HasSubstr(std::to_string(id)));
  }
}

TEST(Tokenizer, HasAHashOfItsVocabulary) {
  const auto bytes = tokenizer::make_tokenizer("bytes");
  // Python: zlib.crc32(b"".join(b"1:" + bytes([i]) for i in range(256)))
  EXPECT_EQ(tokenizer::vocabulary_hash(*bytes), "026d1fa6");
  EXPECT_EQ(tokenizer::vocabulary_hash(*bytes, 3), "b94bac32");
  EXPECT_EQ(tokenizer::vocabulary_hash(BytesAndSpecials::llama3(), 256), tokenizer::vocabulary_hash(*bytes));
  EXPECT_NE(tokenizer::vocabulary_hash(BytesAndSpecials({"<a>"})),
            tokenizer::vocabulary_hash(BytesAndSpecials({"<b>"})));
  // Python: zlib.crc32(b"".join(b"%d:1:" % i + bytes([i]) for i in range(256)))
  EXPECT_EQ(tokenizer::ordinary_hash(*bytes), "57152d2e");
  EXPECT_EQ(tokenizer::ordinary_hash(BytesAndSpecials({"<a>"})), "57152d2e");
  EXPECT_EQ(tokenizer::ordinary_hash(BytesAndSpecials({"<b>", "<c>"})), "57152d2e");
}

TEST(Tokenizer, RefusesOthers) {
  EXPECT_THAT(user_error([] { tokenizer::make_tokenizer("tokenizer.json"); }),
              ::testing::HasSubstr("\"tokenizer.json\""));
}

}  // namespace
}  // namespace llampi::test
