// SPDX-License-Identifier: Apache-2.0
// Calls that may never return, with a limit.
#pragma once

#include <cstdint>
#include <functional>

namespace llampi::health {

enum class Done : std::uint8_t {
  yes,        ///< in time, without an exception
  no,         ///< it threw, or takes longer
  not_begun,  ///< this process has no thread or no memory for it
};

/// Does what may hang in a thread that is left behind if it does.
Done done_within(double seconds, std::function<void()> work);

}  // namespace llampi::health
