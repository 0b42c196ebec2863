// SPDX-License-Identifier: Apache-2.0
// How much room a checkpoint takes, and how much there is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"

namespace llampi::checkpoint {

/// Of the file that save_checkpoint() writes with these settings, or a little more.
/// @param tensors with `optimizer` where moments are written
std::int64_t checkpoint_bytes(const std::vector<TensorInfo>& tensors, const CheckpointTexts& texts,
                              const FileSettings& settings = {});
/// What this user can still write in the folder, or, if it does not exist yet, in the nearest one above it
/// that does. Quotas are not seen. Nothing where the file system does not tell.
std::optional<std::int64_t> free_bytes(const std::filesystem::path& folder);

/// That this process may write (ulimit -f); nothing: as many as there is room for.
std::optional<std::int64_t> most_bytes_of_a_file();

/// Of regular files; 0 for what is not there.
std::int64_t file_bytes(const std::filesystem::path& file);

}  // namespace llampi::checkpoint
