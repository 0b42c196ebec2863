// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace llampi::bench {

/// Seconds since some moment.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace llampi::bench
