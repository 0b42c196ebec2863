// SPDX-License-Identifier: Apache-2.0
// What a tokenizer.model may say, what is refused, and which pieces a text becomes.
#include <cmath>
#include <cstring>

#include "llampi/tokenizer/make_tokenizer.hpp"
#include "support/files.hpp"
#include "tokenizer/files.hpp"

namespace llampi::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string sentencepiece_fixture() {
  return read_text(std::filesystem::path(LLAMPI_TEST_DATA) / "fixtures" / "tokenizers" / "sentencepiece" /
                   "tokenizer.model");
}

TEST(TokenizerSentencePiece, RefusesDamagedFiles) {
  const std::string good = sentencepiece_fixture();
  const auto message = [](const std::string& bytes) {
    return user_error([&] { tokenizer::parse_sentencepiece(bytes, "t.model"); });
  };
  EXPECT_THAT(message(""), StartsWith("t.model: "));
  EXPECT_THAT(message("{}"), StartsWith("t.model: "));
  EXPECT_THAT(message(std::string(1000, '\xFF')), StartsWith("t.model: "));
  EXPECT_THAT(message(good.substr(0, good.size() / 2)), StartsWith("t.model: "));
  EXPECT_THAT(message(good.substr(2)), StartsWith("t.model: "));
  // The piece of a space, U+2581, once more.
  EXPECT_THAT(message(good + "\x0A\x05\x0A\x03\xE2\x96\x81"),
              AllOf(StartsWith("t.model: "), HasSubstr("already defined")));
  // trainer_spec { model_type: UNIGRAM }, normalizer_spec { precompiled_charsmap: "x" }
  EXPECT_THAT(message(good + std::string("\x12\x02\x18\x01", 4)), HasSubstr("only BPE"));
  EXPECT_THAT(message(good + std::string("\x1A\x03\x12\x01x", 5)), HasSubstr("normalizes"));
}

TEST(TokenizerSentencePiece, DamagedFilesAreNoCrash) {
  const std::string good = sentencepiece_fixture();
  for (std::size_t at = 0; at < good.size(); at += 97) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x81);
    try {
      tokenizer::parse_sentencepiece(bytes, "t.model")->encode("Hello <s> world");
    } catch (const Error& error) {
      EXPECT_STRNE(error.what(), "");
    }
  }
}

TEST(TokenizerSentencePiece, SpecialTokensDoNotComeOutOfText) {
  // A user-defined piece that tokenizer_config.json makes the end: "xyzzy", type USER_DEFINED.
  const TemporaryFolder folder;
  write_text(folder / "tokenizer.model",
             sentencepiece_fixture() + std::string("\x0A\x0E\x0A\x05xyzzy\x15\0\0\0\0\x18\x04", 16));
  const auto plain = tokenizer::make_tokenizer((folder / "tokenizer.model").string());
  EXPECT_THAT(plain->encode("a xyzzy"), ::testing::Contains(1200));
  write_text(folder / "tokenizer_config.json", R"({"eos_token": "xyzzy"})");
  const auto tokenizer = tokenizer::make_tokenizer(folder.path().string());
  EXPECT_EQ(tokenizer->end(), 1200);
  EXPECT_THAT(tokenizer->encode("a xyzzy"), ::testing::Contains(1200));
  const auto ids = tokenizer->encode("a xyzzyb", tokenizer::SpecialText::text);
  EXPECT_THAT(ids, ::testing::Not(::testing::Contains(1200)));
  EXPECT_EQ(tokenizer->decode(ids), "a xyzzyb");
}

/// A tokenizer.model made by hand. Lengths are below 128, so each is one byte.
std::string message(char field, const std::string& bytes) {
  return std::string(1, static_cast<char>(field << 3 | 2)) + static_cast<char>(bytes.size()) + bytes;
}

enum PieceType : char { normal = 1, unknown, control, user_defined, unused, byte };

std::string piece(const std::string& text, PieceType type = normal, float score = 0) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &score, 4);  // little-endian, as all machines that are supported
  return message(1, message(1, text) + "\x15" + bytes + "\x18" + static_cast<char>(type));
}

struct ModelText {
  std::string pieces;
  bool remove_extra_whitespaces = false;

  std::string bytes() const {
    const char removes = remove_extra_whitespaces ? 1 : 0;
    return piece("<unk>", unknown) + piece("<s>", control) + pieces + message(2, "\x18\x02") +
           message(3, std::string("\x18\x01\x20") + removes);
  }
  /// The pieces that `text` becomes, by name.
  std::vector<std::string> encode(const std::string& text,
                                  tokenizer::SpecialText special = tokenizer::SpecialText::tokens) const {
    const auto tokenizer = tokenizer::parse_sentencepiece(bytes(), "t.model");
    std::vector<std::string> names;
    for (const auto id : tokenizer->encode(text, special)) names.push_back(tokenizer->bytes_of(id));
    return names;
  }
};

// These texts become the same pieces with SentencePiece 0.2.1.
TEST(TokenizerSentencePiece, MergesByScoreAndOfEqualOnesTheLeftmost) {
  const std::string letters = piece("\u2581") + piece("a") + piece("b") + piece("c");
  EXPECT_THAT(ModelText{letters + piece("ab", normal, -1) + piece("bc", normal, -2)}.encode("abc"),
              ElementsAre(" ", "ab", "c"));
  EXPECT_THAT(ModelText{letters + piece("ab", normal, -2) + piece("bc", normal, -1)}.encode("abc"),
              ElementsAre(" ", "a", "bc"));
  EXPECT_THAT(ModelText{letters + piece("ab", normal, -1) + piece("bc", normal, -1)}.encode("abc"),
              ElementsAre(" ", "ab", "c"));
  EXPECT_THAT(ModelText{letters + piece("aa", normal, -1)}.encode("aaa aa"),
              ElementsAre(" ", "aa", "a", " ", "aa"));
}

TEST(TokenizerSentencePiece, MergesCharactersThatAreNoPieces) {
  const ModelText model{piece("\u2581") + piece("b") + piece("ab", normal, -1) + piece("xy", normal, -1)};
  EXPECT_THAT(model.encode("ab xy"), ElementsAre(" ", "ab", " ", "xy"));
  EXPECT_THAT(model.encode("aab"), ElementsAre(" ", "<unk>", "ab"));
  EXPECT_THAT(model.encode("axqab"), ElementsAre(" ", "<unk>", "ab"));  // what is unknown is one token
}

TEST(TokenizerSentencePiece, UnusedPiecesComeApartAgain) {
  const ModelText model{piece("\u2581") + piece("a") + piece("b") + piece("c") + piece("ab", unused, -1) +
                        piece("abc", unused, -2) + piece("abca", normal, -3)};
  EXPECT_THAT(model.encode("ab abc abca"), ElementsAre(" ", "a", "b", " ", "a", "b", "c", " ", "abca"));
}

TEST(TokenizerSentencePiece, UserDefinedPiecesStayWhole) {
  const std::string pieces = piece("\u2581") + piece("a") + piece("b") + piece("ab", normal, -1) +
                             piece("<e>", user_defined) + piece("<e>a", user_defined) +
                             piece("b\u2581", user_defined);
  EXPECT_THAT(ModelText{pieces}.encode("ab<e>ab"), ElementsAre(" ", "ab", "<e>a", "b"));
  EXPECT_THAT(ModelText{pieces}.encode("ab a"), ElementsAre(" ", "a", "b ", "a"));
}

TEST(TokenizerSentencePiece, TokensOfTurnsDoNotComeOutOfMessages) {
  std::string pieces =
      piece("\u2581") + piece("a") + piece("<e>", user_defined) + piece("<|im_end|>", user_defined);
  for (const char c : std::string("<|im_end>")) {
    if (c != 'e') pieces += piece(std::string(1, c));
  }
  EXPECT_THAT(ModelText{pieces}.encode("a<|im_end|>a<e>"), ElementsAre(" ", "a", "<|im_end|>", "a", "<e>"));
  const auto ids = ModelText{pieces}.encode("a<|im_end|>a<e>", tokenizer::SpecialText::text);
  EXPECT_THAT(ids, ::testing::Not(::testing::Contains("<|im_end|>")));
  EXPECT_THAT(ids, ::testing::Contains("<e>"));
}

TEST(TokenizerSentencePiece, RemovesSpacesWhereTheModelSaysSo) {
  const std::string pieces = piece("\u2581") + piece("a") + piece("\u2581\u2581", normal, -1);
  EXPECT_THAT(ModelText{pieces}.encode(" a  a "), ElementsAre("  ", "a", "  ", "a", " "));
  EXPECT_THAT((ModelText{pieces, true}.encode(" a  a ")), ElementsAre(" ", "a", " ", "a"));
  EXPECT_THAT((ModelText{pieces, true}.encode("  ")), ::testing::IsEmpty());
  EXPECT_THAT((ModelText{pieces, true}.encode(" <s>  a")), ElementsAre("<s>", " ", "a"));
}

TEST(TokenizerSentencePiece, RefusesWhatContradictsItself) {
  const auto message_of = [](const std::string& pieces, const std::string& more = "") {
    return user_error([&] { tokenizer::parse_sentencepiece(ModelText{pieces}.bytes() + more, "t.model"); });
  };
  EXPECT_THAT(message_of(piece("a", normal, std::nanf(""))), HasSubstr("not a number"));
  EXPECT_THAT(message_of(piece("")), HasSubstr("empty"));
  EXPECT_THAT(message_of(piece("<u>", unknown)), HasSubstr("2 pieces stand for what is unknown"));
  EXPECT_THAT(message_of(piece("a", static_cast<PieceType>(7))), HasSubstr("type 7"));
  EXPECT_THAT(message_of(piece("<0x00>", byte)), HasSubstr("byte_fallback"));
  EXPECT_THAT(message_of(piece("a", byte)), HasSubstr("names no byte"));
}

}  // namespace
}  // namespace llampi::test
