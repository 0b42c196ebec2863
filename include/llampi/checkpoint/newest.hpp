// SPDX-License-Identifier: Apache-2.0
// Which checkpoint of a run's folder is taken.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/core/log.hpp"

namespace llampi::checkpoint {

struct FoundCheckpoint {
  std::filesystem::path file;
  CheckpointSummary summary;
};

/// A checkpoint of a run's folder that is not whole.
struct Refused {
  std::filesystem::path file;
  std::string reason;  ///< "FILE is damaged: ...", without what to do
};
/// Null if it is not among them.
const Refused* find(const std::vector<Refused>& refused, const std::filesystem::path& file);

/// The last of a run's checkpoints that is not damaged; nothing if there is none. What is in its values is not
/// looked at.
/// @param files oldest first, as list_checkpoints() has them
/// @param refused files that are not to be taken; damaged ones are added
/// @throws UserError if one that would be taken cannot be read now, though it may be whole: it is locked, of a newer format, or
/// without permission
std::optional<FoundCheckpoint> newest_readable(const std::vector<std::filesystem::path>& files,
                                               std::vector<Refused>& refused, const Log& log);
/// The same, but it is a mistake if there are checkpoints and all of them are damaged.
/// @param run_dir for the message @throws UserError
std::optional<FoundCheckpoint> newest_or_none(const std::vector<std::filesystem::path>& files,
                                              const std::string& run_dir, std::vector<Refused>& refused,
                                              const Log& log);

/// Whether it looks like the folder of a run, with or without checkpoints.
bool is_run_folder(const std::filesystem::path& folder);

}  // namespace llampi::checkpoint
