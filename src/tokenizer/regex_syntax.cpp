// SPDX-License-Identifier: Apache-2.0
// Oniguruma's syntax (Ruby's) as PCRE2's. Known differences that matter to pre-tokenizers: what \s, \w, \d,
// \h and \v stand for, {,n}, {n}? and {n}+, names of scripts, nested and intersected classes, and letters
// that stand for two when case is ignored. Everything not known to mean the same in both is refused.
#include <array>
#include <string>
#include <vector>

#include "llampi/core/error.hpp"
#include "tokenizer/regex.hpp"

namespace llampi::tokenizer {
namespace {

// White_Space; \s of PCRE2 has U+180E besides.
constexpr std::string_view kSpace = "\\t-\\r\\x{85}\\p{Z}";
// Oniguruma counts six numbers of Latin-1 (superscripts, fractions) among the characters of a word, but not in a class.
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr std::string_view kWordInClass = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kHexDigit = "0-9A-Fa-f";
constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr std::string_view kDigits = "0123456789";

bool is_one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where)
      : rest_(pattern), pattern_(pattern), where_(where) {}

  std::string run() {
    if (take("(?i)")) {
      result_ += "(?i)";
      caseless_ = true;
      ignores_case_ = true;
    }
    while (!rest_.empty()) element();
    return result_;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw_user_error("{}: the regular expression {} has {}, which llampi does not support", where_, pattern_,
                     what);
  }

  bool take(std::string_view prefix) {
    if (!rest_.starts_with(prefix)) return false;
    rest_.remove_prefix(prefix.size());
    return true;
  }

  char take_any() {
    if (rest_.empty()) refuse("an unfinished end");
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  void element() {
    const char c = take_any();
    if (c == '\\') {
      escape();
    } else if (c == '[') {
      character_class();
    } else if (c == '(') {
      group();
    } else if (c == '{') {
      interval();
    } else {
      if (c == ')' && !outer_.empty()) {
        ignores_case_ = outer_.back();
        outer_.pop_back();
      }
      literal(c);
    }
  }

  /// Oniguruma takes "ss" for the sharp s and so on when case is ignored; PCRE2 knows single characters only.
  void literal(char c) {
    if (caseless_) {
      if (static_cast<unsigned char>(c) >= 0x80) refuse("a letter beyond ASCII in a part that ignores case");
      static constexpr std::array<std::string_view, 5> kPairs{"ss", "st", "ff", "fi", "fl"};
      const std::array<char, 2> pair{static_cast<char>(last_literal_ | 0x20), static_cast<char>(c | 0x20)};
      for (const auto known : kPairs) {
        if (known == std::string_view(pair.data(), 2))
          refuse("\"ss\", \"st\" or \"f\" with a letter where case is ignored");
      }
    }
    last_literal_ = c;
    result_ += c;
  }

  void group() {
    last_literal_ = '\0';
    result_ += '(';
    outer_.push_back(ignores_case_);
    if (!rest_.starts_with('?')) return;
    for (const std::string_view kind : {"?:", "?=", "?!", "?<=", "?<!", "?>", "?i:"}) {
      if (take(kind)) {
        result_ += kind;
        if (kind == "?i:") {
          caseless_ = true;  // to the end of the pattern, which only makes refusals stricter
          ignores_case_ = true;
        }
        return;
      }
    }
    refuse("a group \"(?\" of a kind");
  }

  /// Behind a '{'. Possessive and reluctant forms mean something else to Oniguruma where there is no range.
  void interval() {
    const auto digits = [&] {
      std::string number;
      while (!rest_.empty() && is_one_of(rest_.front(), kDigits)) number += take_any();
      return number;
    };
    const std::string least = digits();
    const bool range = take(",");
    const std::string most = range ? digits() : "";
    if ((least.empty() && most.empty()) || !take("}")) refuse("a '{' that starts no interval");
    if (rest_.starts_with('+')) refuse("an interval followed by '+'");
    if (rest_.starts_with('?') && !range) refuse("an interval {n} followed by '?'");
    result_ += '{' + (least.empty() ? "0" : least) + (range ? "," : "") + most + '}';
    last_literal_ = '\0';
  }

  void escape() {
    last_literal_ = '\0';
    const char c = take_any();
    switch (c) {
      case 's':
        return append_class("", kSpace);
      case 'S':
        return append_class("^", kSpace);
      case 'w':
        return append_class("", kWord);
      case 'W':
        return append_class("^", kWord);
      case 'h':
        return append_class("", kHexDigit);
      case 'H':
        return append_class("^", kHexDigit);
      case 'A':
      case 'z':
      case 'Z':
        result_ += '\\';
        result_ += c;
        return;
      default:
        escape_anywhere(c);
    }
  }

  void append_class(std::string_view sign, std::string_view members) {
    result_ += '[';
    result_ += sign;
    result_ += members;
    result_ += ']';
  }

  /// Escapes that mean the same inside and outside of a class.
  void escape_anywhere(char c) {
    switch (c) {
      case 'd':
        result_ += "\\p{Nd}";
        return;
      case 'D':
        result_ += "\\P{Nd}";
        return;
      case 'p':
      case 'P':
        return property(c);
      case 'v':
        result_ += "\\x{0B}";
        return;
      case 'u':
        return code_point(4, 4);
      case 'x':
        return code_point(1, 2);
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        result_ += '\\';
        result_ += c;
        return;
      default:
        if (is_one_of(c, kLetters) || is_one_of(c, kDigits)) refuse(std::string("\\") + c);
        if (static_cast<unsigned char>(c) < 0x80) result_ += '\\';
        result_ += c;
    }
  }

  void code_point(std::size_t least_digits, std::size_t most_digits) {
    const bool braces = take("{");
    std::string digits;
    while (!rest_.empty() && is_one_of(rest_.front(), "0123456789ABCDEFabcdef") &&
           (braces || digits.size() < most_digits)) {
      digits += take_any();
    }
    if (digits.empty() || digits.size() > 6 || (!braces && digits.size() < least_digits) ||
        (braces && !take("}"))) {
      refuse("a code point that is not closed");
    }
    if (!braces && least_digits == 1 && std::stoi(digits, nullptr, 16) > 0x7F)
      refuse("\\x of a byte beyond ASCII");
    result_ += "\\x{" + digits + "}";
  }

  /// \p{L}, \p{Lu}, \p{^L}, \p{Han}: general categories by their short names, two properties, otherwise
  /// scripts.
  void property(char sign) {
    if (!take("{")) refuse("\\p without braces");
    const bool negated = take("^");
    std::string name;
    while (!rest_.empty() && rest_.front() != '}') name += take_any();
    if (!take("}")) refuse("a \\p{ that is not closed");
    const bool category = !name.empty() && name.size() <= 2 && is_one_of(name[0], "CLMNPSZ") &&
                          (name.size() == 1 || is_one_of(name[1], "cdefiklmnopstu"));
    for (const char c : name) {
      if (!is_one_of(c, kLetters) && c != '_') refuse("\\p{" + name + "}");
    }
    const bool positive = (sign == 'p') != negated;
    if (ignores_case_) check_ignoring_case(name, positive);
    result_ += positive ? "\\p{" : "\\P{";
    const bool same = category || name == "Alphabetic" || name == "White_Space";
    result_ += same ? name : "sc:" + name;
    result_ += '}';
    if (ignores_case_ && in_class_ && name == "L") result_ += "\\x{345}";
  }

  /// Oniguruma adds to a class all that its members are in the other case; PCRE2, depending on its version, makes one of Lu,
  /// Ll and Lt and leaves other properties as they are. Two characters change theirs with the case: U+0345, a mark, whose
  /// capital is the letter Iota, and the micro sign, of no script, whose capital is the Greek Mu.
  void check_ignoring_case(const std::string& name, bool positive) const {
    const auto is_one = [&](auto... names) { return ((name == names) || ...); };
    const bool changes =
        is_one("Lu", "Ll", "Lt") ||
        (in_class_ && (is_one("M", "Mn", "Greek", "Common", "Inherited") || (name == "L" && !positive)));
    if (changes)
      refuse(fmt::format("\\{}{{{}}}{} where case is ignored", positive ? 'p' : 'P', name,
                         in_class_ ? " in a class" : ""));
  }

  /// Behind a '['.
  void character_class() {
    last_literal_ = '\0';
    in_class_ = true;
    result_ += '[';
    if (take("^")) result_ += '^';
    if (rest_.starts_with(']')) refuse("an empty class []");
    while (!take("]")) {
      const char c = take_any();
      if (c == '[') refuse("a class within a class");
      if (c == '&' && rest_.starts_with('&')) refuse("an intersection of classes (&&)");
      if (caseless_ && static_cast<unsigned char>(c) >= 0x80)
        refuse("a letter beyond ASCII in a part that ignores case");
      if (c == '\\') {
        escape_in_class();
      } else {
        result_ += c;
      }
    }
    in_class_ = false;
    result_ += ']';
  }

  void escape_in_class() {
    const char c = take_any();
    switch (c) {
      case 's':
        result_ += kSpace;
        return;
      case 'S':
        result_ += "\\S\\x{180E}";
        return;
      case 'w':
        result_ += kWordInClass;
        return;
      case 'h':
        result_ += kHexDigit;
        return;
      case 'b':
        result_ += "\\x{08}";
        return;
      default:
        escape_anywhere(c);
    }
  }

  std::string_view rest_;
  std::string_view pattern_;
  const std::string& where_;
  std::string result_;
  bool caseless_ = false;
  bool ignores_case_ = false;  // here, in this group
  std::vector<bool> outer_;    // the same for the groups around it
  bool in_class_ = false;
  char last_literal_ = '\0';
};

}  // namespace

std::string to_pcre2(std::string_view pattern, const std::string& where) {
  return Translation(pattern, where).run();
}

}  // namespace llampi::tokenizer
