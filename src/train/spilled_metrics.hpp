// SPDX-License-Identifier: Apache-2.0
// metrics-to-00000100.jsonl beside the checkpoints in checkpoint.fallback_dir: the lines up to step 100 that metrics.jsonl had no
// room for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>

namespace llampi::train {

/// @param fallback the run's fallback_folder()
std::filesystem::path spilled_metrics(const std::filesystem::path& fallback, std::int64_t step);
/// Those that are there, by step; none in an empty path.
std::map<std::int64_t, std::filesystem::path> list_spilled_metrics(const std::filesystem::path& fallback);
/// Deletes those of steps up to `last_step`, as far as they can be deleted.
void remove_spilled_metrics(const std::filesystem::path& fallback, std::int64_t last_step);

}  // namespace llampi::train
