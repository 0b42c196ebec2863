// SPDX-License-Identifier: Apache-2.0
// What the placement of ranks on nodes does to the last bits of a run: for the log, and for the note `run.placement` in
// checkpoints.
#pragma once

#include <string>
#include <vector>

#include "llampi/fsdp/device_mesh.hpp"
#include "llampi/fsdp/storage.hpp"

namespace llampi::train {

/// Which ranks share a node, as comm::format_placement() has it, if the last bits depend on it: sums follow the placement, or
/// what nodes send each other is rounded to bfloat16 or float16. Otherwise empty.
std::string placement_note(const fsdp::DeviceMesh& mesh, const fsdp::Precision& precision,
                           const std::vector<int>& node_of_rank);

/// How sums over ranks are formed, for the log, where there is a note.
std::string sums_in_words(const fsdp::DeviceMesh& mesh, const fsdp::Precision& precision,
                          const std::string& note);

/// For the log of a run that continues with another note than its checkpoint has; empty where they are equal.
std::string change_of_placement(const std::string& then, const std::string& now);

}  // namespace llampi::train
