// SPDX-License-Identifier: Apache-2.0
// Tokenizers against what Hugging Face's libraries gave for the same files and texts
// (make_tokenizer_fixtures.py).
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "llampi/tokenizer/make_tokenizer.hpp"
#include "llampi/tokenizer/utf8.hpp"
#include "support/files.hpp"

namespace llampi::test {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::filesystem::path tokenizers() {
  return std::filesystem::path(LLAMPI_TEST_DATA) / "fixtures" / "tokenizers";
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<std::string> read_texts() {
  std::vector<std::string> texts;
  for (const auto& text : json::parse(read_text(tokenizers() / "texts.json"))) {
    texts.push_back(text.is_object() ? from_hex(text["hex"]) : text.get<std::string>());
  }
  return texts;
}

/// What is expected of one tokenizer for every text.
struct Expected {
  std::vector<Ids> ids;
  std::vector<Ids> as_text;
  std::vector<std::string> decoded;
};

Expected read_expected(const std::string& name, const std::vector<std::string>& texts) {
  const auto file = json::parse(read_text(tokenizers() / name / "ids.json"));
  Expected expected{file["ids"], file["ids"], {}};
  for (const auto& text : texts) {
    std::string storage;
    expected.decoded.emplace_back(tokenizer::well_formed(text, storage));
  }
  for (const auto& [index, ids] : file["as_text"].items())
    expected.as_text.at(std::stoul(index)) = ids.get<Ids>();
  for (const auto& [index, text] : file["decoded"].items()) expected.decoded.at(std::stoul(index)) = text;
  return expected;
}

class TokenizerFixtures : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<std::string> texts_ = read_texts();
  Expected expected_ = read_expected(GetParam(), texts_);
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_ =
      tokenizer::make_tokenizer((tokenizers() / GetParam()).string());
};

TEST_P(TokenizerFixtures, EncodesAsHuggingFaceDoes) {
  ASSERT_GE(texts_.size(), 2000U);
  ASSERT_EQ(expected_.ids.size(), texts_.size());
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    ASSERT_EQ(tokenizer_->encode(texts_[i]), expected_.ids[i]) << "text " << i << ": " << texts_[i];
    ASSERT_EQ(tokenizer_->encode(texts_[i], tokenizer::SpecialText::text), expected_.as_text[i])
        << "text " << i << " with special tokens as text: " << texts_[i];
  }
}

TEST_P(TokenizerFixtures, DecodesAsHuggingFaceDoes) {
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    ASSERT_EQ(tokenizer_->decode(expected_.ids[i]), expected_.decoded[i]) << "text " << i;
  }
}

TEST_P(TokenizerFixtures, BytesOfTokensAreTheText) {
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    std::string bytes;
    for (const auto id : expected_.ids[i]) bytes += tokenizer_->bytes_of(id);
    // Llama 2 puts a space before a text, which is dropped again when the text is decoded.
    const std::string& text = expected_.decoded[i];
    ASSERT_TRUE(bytes == text || bytes == " " + text) << "text " << i << ": " << bytes;
  }
}

TEST_P(TokenizerFixtures, SpecialTokensDoNotComeOutOfTextThatMayNotHoldThem) {
  for (const auto& text : texts_) {
    for (const auto id : tokenizer_->encode(text, tokenizer::SpecialText::text))
      ASSERT_FALSE(tokenizer_->is_special(id)) << text;
  }
}

TEST_P(TokenizerFixtures, OneTextGivesTheSameAsItsRepetitions) {
  // Through the queue for long words, and past the cache of short ones.
  std::string all;
  for (const auto& text : texts_) all += text + "\n";
  const auto once = tokenizer_->encode(all);
  EXPECT_EQ(tokenizer_->encode(all), once);
  EXPECT_EQ(tokenizer::make_tokenizer((tokenizers() / GetParam()).string())->encode(all), once);
}

TEST_P(TokenizerFixtures, ThreadsShareATokenizer) {
  std::vector<std::size_t> wrong(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = t; i < texts_.size(); ++i) {
          if (tokenizer_->encode(texts_[i]) != expected_.ids[i]) ++wrong[t];
          if (i % 8 == 0 && tokenizer_->decode(expected_.ids[i]) != expected_.decoded[i]) ++wrong[t];
        }
      });
    }
  }
  EXPECT_THAT(wrong, ::testing::Each(0U));
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerFixtures,
                         ::testing::Values("llama3", "gpt2", "llama2", "sentencepiece", "qwen", "mistral",
                                           "mistral-v3", "tekken"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(TokenizerFixture, KnowsItsTokens) {
  const auto llama3 = tokenizer::make_tokenizer((tokenizers() / "llama3").string());
  EXPECT_EQ(llama3->name(), "tokenizer.json (BPE, 1506)");
  EXPECT_EQ(llama3->vocabulary(), 1506);
  EXPECT_EQ(llama3->begin(), llama3->find("<|begin_of_text|>"));
  EXPECT_EQ(llama3->find("<|begin_of_text|>"), 1500);
  EXPECT_TRUE(llama3->is_special(1500));
  EXPECT_FALSE(llama3->is_special(1499));
  EXPECT_FALSE(llama3->is_special(-1));
  EXPECT_FALSE(llama3->is_special(1506));
  EXPECT_EQ(llama3->end(), std::nullopt);
  EXPECT_EQ(llama3->find("nothing"), std::nullopt);
  EXPECT_EQ(llama3->find(""), std::nullopt);
  const auto space_the = llama3->find("\u0120the");
  ASSERT_TRUE(space_the);
  EXPECT_EQ(llama3->bytes_of(*space_the), " the");
  EXPECT_EQ(llama3->bytes_of(1502), "<|eot_id|>");
  EXPECT_FALSE(llama3->encodes_piecewise());

  const auto sentencepiece =
      tokenizer::make_tokenizer((tokenizers() / "sentencepiece" / "tokenizer.model").string());
  EXPECT_EQ(sentencepiece->name(), "tokenizer.model (SentencePiece BPE, 1200)");
  EXPECT_EQ(sentencepiece->begin(), 1);
  EXPECT_EQ(sentencepiece->end(), 2);
  EXPECT_EQ(sentencepiece->find("</s>"), 2);
  EXPECT_EQ(sentencepiece->find("nothing"), std::nullopt);
  EXPECT_EQ(sentencepiece->bytes_of(*sentencepiece->find("<0x0A>")), "\n");

  const auto llama2 = tokenizer::make_tokenizer((tokenizers() / "llama2" / "tokenizer.json").string());
  EXPECT_EQ(llama2->begin(), 1);
  EXPECT_EQ(llama2->bytes_of(*llama2->find("<0xE2>")), "\xE2");
}

TEST(TokenizerFixture, RefusesIdsOutsideTheVocabulary) {
  for (const char* name : {"llama3", "sentencepiece"}) {
    const auto tokenizer = tokenizer::make_tokenizer((tokenizers() / name).string());
    for (const auto id : {-1, static_cast<int>(tokenizer->vocabulary()), INT32_MAX}) {
      const Ids ids{5, id};
      EXPECT_THAT(user_error([&] { tokenizer->decode(ids); }), ::testing::HasSubstr(std::to_string(id)));
      EXPECT_THAT(user_error([&] { tokenizer->bytes_of(id); }), ::testing::HasSubstr(std::to_string(id)));
    }
  }
}

TEST(TokenizerFixture, WholeTextsOfSpacesAndLettersTakeNoTimeToSpeakOf) {
  // Each would take minutes if any step looked at all pairs.
  for (const char* name : {"llama3", "gpt2", "llama2", "sentencepiece"}) {
    const auto tokenizer = tokenizer::make_tokenizer((tokenizers() / name).string());
    for (const char* part : {" ", "a", "\n", "é", "1", " a", "<", "\xFF"}) {
      std::string text;
      while (text.size() < 300'000) text += part;
      EXPECT_GT(tokenizer->encode(text).size(), 100U) << name << " " << part;
    }
  }
}

}  // namespace
}  // namespace llampi::test
