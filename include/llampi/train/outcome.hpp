// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace llampi::train {

/// How a job of a run ends: the run is finished, or was told to stop. Exit status 0 and 75.
enum class Outcome : std::uint8_t { done, stopped };

}  // namespace llampi::train
