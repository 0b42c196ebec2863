// Numbers for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llampi {

/// "1.50 GiB", "12 KiB", "7 B".
std::string format_bytes(std::int64_t bytes);
/// "1h 02m", "3m 20s", "12s".
std::string format_duration(double seconds);
/// "1 unit", "2 units".
std::string count(std::int64_t number, const char* one, const char* ending = "s");
/// The word of `known` with the smallest edit distance to `word`; empty if `known` is.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace llampi
