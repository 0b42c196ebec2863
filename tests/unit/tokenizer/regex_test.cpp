// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/regex.hpp"

#include "llampi/tokenizer/utf8.hpp"
#include "support/files.hpp"
#include "tokenizer/steps.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Behavior = tokenizer::Split::Behavior;

std::vector<std::string> split(const std::string& pattern, const std::string& text,
                               Behavior behavior = Behavior::isolated, bool invert = false) {
  const tokenizer::Split step{tokenizer::Regex(pattern, "test"), behavior, invert};
  tokenizer::Matcher matcher;
  tokenizer::SplitPieces pieces(step, matcher, text);
  std::vector<std::string> result;
  while (const auto piece = pieces.next()) result.emplace_back(*piece);
  return result;
}

// What Hugging Face's tokenizers 0.22.2 gives, with Oniguruma.
TEST(TokenizerRegex, ReadsPatternsAsOnigurumaDoes) {
  EXPECT_THAT(split("a$", "a\na"), ElementsAre("a", "\n", "a"));
  EXPECT_THAT(split("\\n$", "a\n\n"), ElementsAre("a", "\n", "\n"));
  EXPECT_THAT(split("$", "ab\n"), ElementsAre("ab", "\n"));
  EXPECT_THAT(split("^", "a\nb\n"), ElementsAre("a\n", "b\n"));
  EXPECT_THAT(split(".+", "ab\ncd\r\n"), ElementsAre("ab", "\n", "cd\r", "\n"));
  EXPECT_THAT(split("\\s+$", "a  \n  "), ElementsAre("a", "  \n  "));
  EXPECT_THAT(split("(?i:'s)", "'\u017F'S"), ElementsAre("'\u017F", "'S"));
  EXPECT_THAT(split("a{,2}", "aaaa"), ElementsAre("aa", "aa"));
  EXPECT_THAT(split("\\h+", "0aZ"), ElementsAre("0a", "Z"));
  EXPECT_THAT(split("(?i)ab", "aBAB"), ElementsAre("aB", "AB"));
  EXPECT_THAT(split("\\v", "a\x0B\n"), ElementsAre("a", "\x0B", "\n"));
  EXPECT_THAT(split("\\s", "a\u180E\u3000\u200B"), ElementsAre("a\u180E", "\u3000", "\u200B"));
  EXPECT_THAT(split("[^\\S\\n]+", "a \u180E\t\n"), ElementsAre("a", " ", "\u180E", "\t", "\n"));
  EXPECT_THAT(split("\\w+", "a\u00B2_\u0301-"), ElementsAre("a\u00B2_\u0301", "-"));
  EXPECT_THAT(split("[\\w]+", "a\u00B2_\u0301-\u00B9"), ElementsAre("a", "\u00B2", "_\u0301", "-\u00B9"));
  EXPECT_THAT(split("[^\\w]", "a\u00BCb"), ElementsAre("a", "\u00BC", "b"));
  EXPECT_THAT(split("[\\w\\-']+", "a\u00BEb-\u00B3"), ElementsAre("a", "\u00BE", "b-", "\u00B3"));
}

TEST(TokenizerRegex, CutsAsTheBehaviorSays) {
  EXPECT_THAT(split("x", "axxb", Behavior::isolated), ElementsAre("a", "x", "x", "b"));
  EXPECT_THAT(split("x", "axxb", Behavior::removed), ElementsAre("a", "b"));
  EXPECT_THAT(split("x", "axxb", Behavior::removed, true), ElementsAre("x", "x"));
  EXPECT_THAT(split("x", "axxb", Behavior::merged_with_previous), ElementsAre("ax", "x", "b"));
  EXPECT_THAT(split("x", "axxb", Behavior::merged_with_next), ElementsAre("a", "x", "xb"));
  EXPECT_THAT(split("x", "axxb", Behavior::contiguous), ElementsAre("a", "xx", "b"));
  EXPECT_THAT(split("x*", "axxb", Behavior::isolated), ElementsAre("a", "xx", "b"));
  EXPECT_THAT(split("x*", "axxb", Behavior::merged_with_previous), ElementsAre("axx", "b"));
  EXPECT_THAT(split("x*", "axxb", Behavior::merged_with_next), ElementsAre("a", "xxb"));
}

/// What tokenizers 0.23 makes of them.
TEST(TokenizerRegex, IgnoresCaseOnlyInItsGroup) {
  EXPECT_THAT(split("(?i:'s|(a))[\\p{Lu}]", "AB\u0345Ab"), ElementsAre("AB", "\u0345Ab"));
  EXPECT_THAT(split("(?:(?i:x)[\\p{Ll}\\p{M}])+", "Xaxb"), ElementsAre("Xaxb"));
  EXPECT_THAT(split("(?i:[\\p{L}\\n]+)", "a1\u0345\u03B91"), ElementsAre("a", "1", "\u0345\u03B9", "1"));
  EXPECT_THAT(split("(?i:[^\\p{L}]+)", "1\u0345a"), ElementsAre("1", "\u0345a"));
  EXPECT_THAT(split("(?i:\\p{L}+)", "a\u0345"), ElementsAre("a", "\u0345"));
}

TEST(TokenizerRegex, RefusesWhatTheTwoReadDifferently) {
  const std::vector<std::pair<std::string, std::string>> refused{
      {"[a-z&&[^b]]", "intersection"},
      {"[a&&b]", "intersection"},
      {"[[:alpha:]]", "class within"},
      {"(?i:ss)", "case"},
      {"(?i:STR)", "case"},
      {"(?i:\u00DF)", "beyond ASCII"},
      {"(?m:a)", "group"},
      {"(?<name>a)", "group"},
      {"a{2}+", "'+'"},
      {"a{2}?", "'?'"},
      {"a{", "interval"},
      {"\\b", "\\b"},
      {"\\R", "\\R"},
      {"(a)\\1", "\\1"},
      {"(?i:[\\p{Lu}x])", "\\p{Lu} in a class where case"},
      {"(?i:[^\\p{Ll}])", "\\p{Ll} in a class where case"},
      {"(?i:a(b[\\P{Lt}]))", "\\P{Lt} in a class where case"},
      {"(?i)(?:a)\\p{Lu}", "\\p{Lu} where case"},
      {"(?i:[\\p{M}])", "\\p{M} in a class where case"},
      {"(?i:[\\p{^L}])", "\\P{L} in a class where case"},
      {"(?i:[\\p{Greek}])", "\\p{Greek} in a class"},
      {"\\pL", "braces"},
      {"\\p{L", "not closed"},
      {"\\p{L-}", "\\p{L-}"},
      {"[]", "empty"},
      {"[abc", "unfinished"},
      {"\\", "unfinished"},
      {"\\x{110000000}", "code point"},
      {"(", "PCRE2"},
      {"*", "PCRE2"},
      {"\\p{Nonsense}", "PCRE2"},
      {"(?<=a+)b", "PCRE2"},
      {"\\x{110000}", "PCRE2"},
      {"\\xFF", "ASCII"},
      {std::string(1000, '('), "PCRE2"}};
  for (const auto& [pattern, what] : refused) {
    EXPECT_THAT(user_error([&] { tokenizer::Regex(pattern, "here"); }),
                AllOf(HasSubstr("here: "), HasSubstr(what)))
        << pattern;
  }
}

TEST(TokenizerRegex, EndsWherePatternsDoNot) {
  const tokenizer::Regex regex("(?:a|aa)+[^a]", "test");
  tokenizer::Matcher matcher;
  const std::string text(100, 'a');
  EXPECT_THAT(user_error([&] { matcher.find(regex, text, 0); }), HasSubstr("failed on a text"));
}

TEST(TokenizerRegex, LiteralsAreNoPatterns) {
  const tokenizer::Regex regex = tokenizer::Regex::literal("a.*\\", "test");
  tokenizer::Matcher matcher;
  EXPECT_FALSE(matcher.find(regex, "abc\\", 0));
  EXPECT_EQ(matcher.find(regex, "xa.*\\", 0)->begin, 1U);
}

TEST(TokenizerUtf8, ReplacesWhatIsIllFormed) {
  const auto fixed = [](std::string_view text) {
    std::string storage;
    return std::string(tokenizer::well_formed(text, storage));
  };
  EXPECT_EQ(fixed("a\xC3\xA4 \xF0\x9F\x98\x80"), "a\xC3\xA4 \xF0\x9F\x98\x80");
  EXPECT_EQ(fixed("\x80"), "\uFFFD");
  EXPECT_EQ(fixed("a\xC0\x80"), "a\uFFFD\uFFFD");
  EXPECT_EQ(fixed("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(fixed("\xF0\x9F\x98z\xF0\x9F"), "\uFFFDz\uFFFD");
  EXPECT_EQ(fixed("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
}

}  // namespace
}  // namespace llampi::test
