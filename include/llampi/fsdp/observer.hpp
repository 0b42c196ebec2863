// SPDX-License-Identifier: Apache-2.0
// Whoever wants to see what an engine does.
#pragma once

#include <cstdint>
#include <functional>

#include "llampi/fsdp/program.hpp"

namespace llampi::fsdp {

/// begin, end: an action is issued, and it is known to be done: of collectives that may be much later, and other
/// actions begin and end in between. Where a device runs beside the host that is no more than the host knows;
/// when the device began and ended the action is said of all actions once the list is done.
enum class Moment : std::uint8_t { begin, end, began_on_device, ended_on_device };
/// `index` is that of the action in the list; `seconds` are those of steady_seconds().
using Observer = std::function<void(const Action& action, int index, Moment moment, double seconds)>;

}  // namespace llampi::fsdp
