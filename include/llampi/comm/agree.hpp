// SPDX-License-Identifier: Apache-2.0
// Failures that all ranks know of before any goes on.
#pragma once

#include <functional>

#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/forward.hpp"

namespace llampi::comm {

/// Runs `work` on this rank and lets all ranks agree on the outcome before any goes on: if it threw UserError
/// on some rank, every rank throws UserError with the message of the lowest such rank (prefixed with rank and
/// host if not all ranks failed in the same way); with any other exception the same as CommonError. Collective.
/// `work` itself must not wait for other ranks after a failure of its own.
void agree(World& world, const std::function<void()>& work);

/// The same for work that succeeds on all ranks or on none, if all nodes are as they should be, as reading a file or finding a GPU: where
/// only some ranks fail, not what the user gave is wrong but a node, and UserError becomes CommonError.
void agree_on_nodes(World& world, const std::function<void()>& work);

}  // namespace llampi::comm
