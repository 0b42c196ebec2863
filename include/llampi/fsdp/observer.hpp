// SPDX-License-Identifier: Apache-2.0
// A callback that observes what an engine does.
#pragma once

#include <cstdint>
#include <functional>

#include "llampi/fsdp/program.hpp"

namespace llampi::fsdp {

/// begin, end: an action is issued, and it is known to be done. For collectives, `end` may come much later, and other
/// actions begin and end in between. Where a device runs asynchronously to the host, these are only what the host knows;
/// when the device began and ended each action is reported for all actions once the list is done.
enum class Moment : std::uint8_t { begin, end, began_on_device, ended_on_device };
/// `index` is that of the action in the list; `seconds` are those of steady_seconds().
using Observer = std::function<void(const Action& action, int index, Moment moment, double seconds)>;

}  // namespace llampi::fsdp
