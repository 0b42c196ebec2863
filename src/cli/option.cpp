// SPDX-License-Identifier: Apache-2.0
#include "cli/option.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"

namespace llampi::cli {
namespace {

bool contains(const std::vector<std::string>& values, const std::string& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// "use a", "use a or b", "use a, b or c".
std::string advice(const std::vector<std::string>& words) {
  std::string text = "use " + words[0];
  for (std::size_t i = 1; i < words.size(); ++i) text += (i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

std::string describe(const Range& range) {
  std::string text;
  if (std::isfinite(range.low))
    text = fmt::format("{} {}", range.includes_low ? "at least" : "above", range.low);
  if (std::isfinite(range.high)) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " and ", range.includes_high ? "at most" : "below",
                        range.high);
  }
  return text;
}

bool includes(const Range& range, double value) {
  return (range.includes_low ? value >= range.low : value > range.low) &&
         (range.includes_high ? value <= range.high : value < range.high);
}

[[noreturn]] void refuse(const Setting& setting, const std::string& problem) {
  if (setting.where == kCommandLine && setting.key.find('.') == std::string::npos)  // no key, but an option
    throw_user_error("--{} {} {}", setting.key, setting.value, problem);
  const std::string where = setting.where.empty() ? "" : fmt::format(" ({})", setting.where);
  throw_user_error("{} = {}{} {}", setting.key, setting.value, where, problem);
}

/// "1e9" and "2.5e6" are whole numbers, too; not a number for what is none of them.
double whole_with_exponent(const std::string& text) {
  constexpr double kLargest = 0x1p53;  // above it a double has gaps
  if (text.find_first_of("eE") == std::string::npos) return NAN;
  const double value = parse_number<double>(text).value_or(NAN);
  return std::abs(value) <= kLargest && std::trunc(value) == value ? value : NAN;
}

template <class Number>
Number parse_numeric(const Option& option, const Setting& setting) {
  constexpr bool kWhole = std::is_integral_v<Number>;
  const char* end = setting.value.data() + setting.value.size();
  Number number{};
  const auto [stopped, error] = std::from_chars(setting.value.data(), end, number);
  bool read = error == std::errc() && stopped == end;
  if constexpr (kWhole) {
    const double value = read ? NAN : whole_with_exponent(setting.value);
    const bool fits = value >= static_cast<double>(std::numeric_limits<Number>::min()) &&
                      value <= static_cast<double>(std::numeric_limits<Number>::max());
    if (fits) number = static_cast<Number>(value);
    read = read || fits;
  } else {
    read = read && std::isfinite(number);
  }
  if (error == std::errc::result_out_of_range) refuse(setting, "is too large or too small a number");
  if (!read && std::is_unsigned_v<Number>) refuse(setting, "must be a whole number from 0");
  if (!read) refuse(setting, kWhole ? "is not a whole number" : "is not a number");
  if (!includes(option.values.range, static_cast<double>(number))) {
    refuse(setting,
           "is out of range; it must be " + describe(option.values.range) + option.values.range.advice);
  }
  return number;
}

/// The word that is meant. @throws UserError if it is none of them
std::string parse_word(const Option& option, const Setting& setting) {
  std::string word = lower_case(setting.value);
  if (!contains(words_of(option), word)) refuse(setting, "is not known; " + advice(words_of(option)));
  return word;
}

void parse(const Option& option, const Setting& setting, bool& target) {
  if (option.flag && setting.value.empty()) {
    target = true;
  } else if (const std::string word = lower_case(setting.value); word == "true" || word == "false") {
    target = word == "true";
  } else {
    refuse(setting, "is neither true nor false");
  }
}

void parse(const Option& option, const Setting& setting, std::string& target) {
  target = words_of(option).empty() ? setting.value : parse_word(option, setting);
}

void parse(const Option& option, const Setting& setting, const Spelled& target) {
  const bool known = target.read(target.words.empty() ? setting.value : parse_word(option, setting));
  if (!known) refuse(setting, "is not known; " + target.advice);
}

template <class Number>
void parse(const Option& option, const Setting& setting, Number& target) {
  target = parse_numeric<Number>(option, setting);
}

}  // namespace

const std::vector<std::string>& words_of(const Option& option) {
  const auto* spelled = std::get_if<Spelled>(&option.target);
  return spelled != nullptr && !spelled->words.empty() ? spelled->words : option.values.one_of;
}

void assign(const Option& option, const Setting& setting) {
  std::visit(
      [&](const auto& target) {
        if constexpr (std::is_pointer_v<std::decay_t<decltype(target)>>) {
          parse(option, setting, *target);
        } else {
          parse(option, setting, target);
        }
      },
      option.target);
}

std::string value_text(const Option& option) {
  return std::visit(
      [](const auto& target) {
        if constexpr (std::is_pointer_v<std::decay_t<decltype(target)>>) {
          return fmt::format("{}", *target);
        } else {
          return target.write();
        }
      },
      option.target);
}

std::string value_name(const Option& option) {
  if (!option.values.name.empty()) return option.values.name;
  if (!words_of(option).empty()) return fmt::format("{}", fmt::join(words_of(option), "|"));
  if (std::holds_alternative<bool*>(option.target)) return "true|false";
  if (std::holds_alternative<double*>(option.target)) return "X";
  return std::holds_alternative<std::string*>(option.target) ? "TEXT" : "N";
}

std::vector<std::string> keys_of(const std::vector<Option>& options) {
  std::vector<std::string> keys;
  for (const auto& option : options) keys.push_back(option.key);
  return keys;
}

const Option* find_option(const std::vector<Option>& options, const std::string& key) {
  const auto found =
      std::find_if(options.begin(), options.end(), [&](const auto& o) { return o.key == key; });
  return found == options.end() ? nullptr : &*found;
}

}  // namespace llampi::cli
