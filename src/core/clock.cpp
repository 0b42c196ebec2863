// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/clock.hpp"

#include <fmt/chrono.h>

#include <chrono>
#include <ctime>

namespace llampi {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_now() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

}  // namespace llampi
