// SPDX-License-Identifier: Apache-2.0
// Whether all nodes see the folder that all of them are going to write into.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "llampi/comm/forward.hpp"

namespace llampi::train {

/// In seconds: file servers may tell a node for a minute that a file is not there which another node has made.
inline constexpr double kShareSeconds = 90;

/// Rank 0 makes a file in the folder, one rank of each node looks for it, and rank 0 deletes it. Does nothing on
/// one node. Collective.
/// @param folder of the run's checkpoints, as this rank sees it @param run_dir that the message names
/// @param waits is called again and again while this rank does not see the file
/// @param patience in seconds: how long a node may not see the file yet
/// @throws ConfigError on all ranks, which names a rank and host that do not see it
void require_shared_folder(comm::World& world, const std::filesystem::path& folder,
                           const std::string& run_dir, const std::function<void()>& waits = nullptr,
                           double patience = kShareSeconds);

}  // namespace llampi::train
