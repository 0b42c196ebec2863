// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace llampi::health {

/// Does what may hang in a thread that is left behind if it does. True if it was done in time, without an exception.
bool done_within(double seconds, std::function<void()> work);

}  // namespace llampi::health
