// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/clock.hpp"

#include <fmt/chrono.h>

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

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

}  // namespace llampi
