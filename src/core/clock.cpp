// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/clock.hpp"

#include <fmt/chrono.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <limits>

namespace llampi {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double seconds_of_utc(const std::string& text) {
  std::tm time{};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  if (end == nullptr || *end != '\0') return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(::timegm(&time));
}

std::string utc_time(double unix_seconds) {
  constexpr double kLast = 253402300799;  // of the year 9999
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(static_cast<std::time_t>(std::clamp(unix_seconds, 0.0, kLast))));
}

std::string utc_now() { return utc_time(static_cast<double>(std::time(nullptr))); }

}  // namespace llampi
