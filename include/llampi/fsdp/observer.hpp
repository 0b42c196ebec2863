// SPDX-License-Identifier: Apache-2.0
// Whoever wants to see what an engine does.
#pragma once

#include <cstdint>
#include <functional>

#include "llampi/fsdp/program.hpp"

namespace llampi::fsdp {

enum class Moment : std::uint8_t { begin, end };
/// Called when an action is issued and when it is known to be done: for collectives that may be much later,
/// and other actions begin and end in between. `index` is that of the action in the list.
using Observer = std::function<void(const Action& action, int index, Moment moment)>;

}  // namespace llampi::fsdp
