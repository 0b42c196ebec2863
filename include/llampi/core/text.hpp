// SPDX-License-Identifier: Apache-2.0
// Numbers written for people, and read from what they write.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

namespace llampi {

/// "1.50 GiB", "12 KiB", "7 B".
std::string format_bytes(std::int64_t bytes);
/// "4,484,352".
std::string with_separators(std::int64_t number);
/// Rounded to an integer: "4,484,352". An int must be converted to one of the two.
std::string with_separators(double number);
/// "100 billion", "1.5 million", "4,484,352" for what has more digits than these show.
std::string in_words(double number);
/// "1h 02m", "3m 20s", "12s".
std::string format_duration(double seconds);
/// "1 unit", "2 units", "4,096 tokens".
std::string count(std::int64_t number, const char* one, const char* ending = "s");
/// `text` with `replacement` for each control character but those in `kept`: of ASCII, and U+0080 to U+009F in UTF-8. So text from
/// a file cannot control a terminal or begin a line.
std::string replace_controls(std::string_view text, char replacement, std::string_view kept = {});
/// " (seen from FOLDER)", the current one, for a relative path; empty for others. For what is not there.
std::string seen_from(const std::filesystem::path& path);
/// `text` without a UTF-8 byte order mark at its beginning, which some editors write.
std::string_view without_byte_order_mark(std::string_view text);
/// Letters to insert, leave out or replace that make `b` of `a` (Levenshtein). Takes |a| |b| steps.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The number that the whole of `text` is, in decimal and whatever the locale; none if it is empty, if anything else is before or
/// after the number (a space, or the sign "+", too), or if T has no such number: too large, or negative for an unsigned T.
/// For a floating-point T, "inf" and "nan" are numbers.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
  T number{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end ? std::optional<T>(number) : std::nullopt;
}

}  // namespace llampi
