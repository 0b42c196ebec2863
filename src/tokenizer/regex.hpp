// SPDX-License-Identifier: Apache-2.0
// The regular expressions of tokenizer.json. Hugging Face's library runs them with Oniguruma; here PCRE2
// does, after a translation of what the two read differently. Oniguruma 6.9.8 was tried instead, with its
// Ruby syntax as in Hugging Face's library: same ids, but too slow. On prose, source and translations into a
// hundred languages (80 MB), a match of Llama 3's pattern takes 260 to 370 ns there and 50 to 90 ns as
// PCRE2's machine code; `llampi tokenize` as a whole took 1.5 to 2.6 times as long (one thread, Llama 3's and
// GPT-2's patterns, vocabularies of 100,000 and 50,000). The cache of words does not help: only behind the
// pattern is it known what a word is. Private to the library.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/unicode.hpp"

namespace llampi::tokenizer {

/// Bytes [begin, end) of a text.
struct Span {
  std::size_t begin;
  std::size_t end;
};

/// `pattern`, written for Oniguruma, for PCRE2. What PCRE2 cannot express alike is refused.
/// @throws UserError that starts with `where`
std::string to_pcre2(std::string_view pattern, const std::string& where);

/// Immutable: used by several threads at once. Unicode tables are those of the PCRE2 that is installed; Matches
/// makes up for what differs from Hugging Face's library.
class Regex {
 public:
  /// @throws UserError that starts with `where` for a pattern that is malformed or not supported
  Regex(std::string_view pattern, const std::string& where);
  /// Matches `text` itself.
  static Regex literal(std::string_view text, const std::string& where);
  /// A number as the pre-tokenizer Digits has it.
  static Regex digits();
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  struct Code;
  const Code& code() const { return *code_; }
  /// Whether it is to be run on for_matching(text): a pattern with classes and properties that Unicode defines.
  bool has_properties() const { return has_properties_; }

 private:
  explicit Regex(std::unique_ptr<Code> code, bool has_properties = false);
  std::unique_ptr<Code> code_;
  bool has_properties_;
};

/// What one thread needs to search.
class Matcher {
 public:
  Matcher();
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  /// The first match at or after byte `from` of a text that is UTF-8.
  /// @throws UserError where a text takes the pattern too many steps
  std::optional<Span> find(const Regex& regex, std::string_view text, std::size_t from);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// All matches, as Hugging Face's library goes through them: an empty match right behind the last one is left
/// out.
class Matches {
 public:
  Matches(const Regex& regex, Matcher& matcher, std::string_view text)
      : regex_(regex),
        matcher_(matcher),
        text_(regex.has_properties() ? for_matching(text, storage_) : text) {}
  Matches(const Matches&) = delete;
  Matches& operator=(const Matches&) = delete;
  std::optional<Span> next();

 private:
  const Regex& regex_;
  Matcher& matcher_;
  std::string storage_;
  std::string_view text_;
  std::size_t from_ = 0;
  std::optional<std::size_t> last_end_;
};

}  // namespace llampi::tokenizer
