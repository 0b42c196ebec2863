// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace llampi {

std::string seen_from(const std::filesystem::path& path) {
  std::error_code error;
  const auto folder = std::filesystem::current_path(error);
  return path.is_absolute() || error ? "" : fmt::format(" (seen from {})", folder.string());
}

std::string format_bytes(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 5) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string with_separators(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::ptrdiff_t at = std::ssize(text) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

std::string with_separators(double number) { return with_separators(std::int64_t{std::llround(number)}); }

std::string in_words(double number) {
  constexpr std::pair<double, const char*> kUnits[] = {
      {1e12, "trillion"}, {1e9, "billion"}, {1e6, "million"}};
  for (const auto& [unit, name] : kUnits) {
    const double thousandths = number / unit * 1e3;
    if (number >= unit && thousandths == std::round(thousandths))
      return fmt::format("{} {}", number / unit, name);
  }
  return with_separators(number);
}

std::string format_duration(double seconds) {
  const auto s = static_cast<long>(std::llround(std::max(0.0, seconds)));
  if (s >= 3600) return fmt::format("{}h {:02}m", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{}m {:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

std::string count(std::int64_t number, const char* one, const char* ending) {
  return fmt::format("{} {}{}", with_separators(number), one, number == 1 ? "" : ending);
}

std::string replace_controls(std::string_view text, char replacement, std::string_view kept) {
  const auto byte = [text](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool two_bytes = byte(i) == 0xc2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xa0;
    const bool is_control = two_bytes || byte(i) < 0x20 || byte(i) == 0x7f;
    result += is_control && kept.find(text[i]) == std::string_view::npos ? replacement : text[i];
    if (two_bytes) ++i;
  }
  return result;
}

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace llampi
