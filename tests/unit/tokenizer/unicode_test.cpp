// SPDX-License-Identifier: Apache-2.0
// Unicode as Hugging Face's library has it: all characters, against fixtures/tokenizers/unicode.json
// (make_unicode_tables.py).
#include "tokenizer/unicode.hpp"

#include <libdeflate.h>

#include <nlohmann/json.hpp>

#include "llampi/tokenizer/utf8.hpp"
#include "support/files.hpp"
#include "tokenizer/regex.hpp"

namespace llampi::test {
namespace {

using nlohmann::json;

const json& known_unicode() {
  static const json file = json::parse(
      read_text(std::filesystem::path(LLAMPI_TEST_DATA) / "fixtures" / "tokenizers" / "unicode.json"));
  return file;
}

template <class Use>
void for_each_character(const Use& use) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c < 0xD800 || c >= 0xE000) use(c);
  }
}

std::uint32_t checksum(std::string_view text) { return libdeflate_crc32(0, text.data(), text.size()); }

std::uint32_t checksum_of_matches(const tokenizer::Regex& regex) {
  static const std::string text = [] {
    std::string all;
    for_each_character([&](char32_t c) { tokenizer::append_character(all, c); });
    return all;
  }();
  tokenizer::Matcher matcher;
  tokenizer::Matches matches(regex, matcher, text);
  std::string matched;
  while (const auto match = matches.next()) matched.append(text, match->begin, match->end - match->begin);
  return checksum(matched);
}

std::string composed(std::string_view text) {
  std::string storage;
  return std::string(tokenizer::compose(text, storage));
}

TEST(TokenizerUnicode, PropertiesAreThoseOfHuggingFace) {
  EXPECT_EQ(known_unicode()["patterns"].size(), 63U);
  for (const auto& [pattern, wanted] : known_unicode()["patterns"].items())
    EXPECT_EQ(checksum_of_matches(tokenizer::Regex(pattern, "test")), wanted) << pattern;
  EXPECT_EQ(checksum_of_matches(tokenizer::Regex::digits()), known_unicode()["digits"]);
}

TEST(TokenizerUnicode, ComposesAsHuggingFaceDoes) {
  std::string all;
  for_each_character([&](char32_t c) {
    if (!all.empty()) all += '|';
    tokenizer::append_character(all, c);
  });
  EXPECT_EQ(checksum(composed(all)), known_unicode()["nfc"]);
  std::string pairs;
  for (const std::string mark : known_unicode()["nfc_marks"]) {
    for_each_character([&](char32_t c) {
      if (c >= 0x30000 || (c >= 0xE010 && c < 0xF900)) return;
      pairs += '|';
      tokenizer::append_character(pairs, c);
      pairs += mark;
    });
  }
  EXPECT_EQ(checksum(composed(pairs)), known_unicode()["nfc_pairs"]);
}

TEST(TokenizerUnicode, ComposesTextsOfMarksInTime) {
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += i % 2 ? "\u0301" : "\u0323";
  EXPECT_EQ(composed(text).size(), text.size());
  EXPECT_EQ(composed("plain"), "plain");
  EXPECT_EQ(composed("e\u0301 \u1112\u1161\u11AB"), "\u00E9 \uD55C");
}

}  // namespace
}  // namespace llampi::test
