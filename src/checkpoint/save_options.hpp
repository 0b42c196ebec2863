// SPDX-License-Identifier: Apache-2.0
// What tests vary of a save.
#pragma once

#include <cstdint>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/io/block_sums.hpp"

namespace llampi::checkpoint {

struct SaveOptions {
  FileSettings file;
  /// Refuse before writing if the file system has not enough space. Off in tests of a disk that fills up
  /// while writing.
  bool check_free_space = true;
  std::int64_t block_elements = io::kChecksumBlockElements;
  /// What one rank writes for others at a time, or more, so that it ends at a stripe.
  std::int64_t window_bytes = std::int64_t{8} << 20;
};

/// checkpoint_bytes() of llampi/checkpoint/room.hpp with other options.
std::int64_t checkpoint_bytes(const std::vector<TensorInfo>& tensors, const CheckpointTexts& texts,
                              const SaveOptions& options);

}  // namespace llampi::checkpoint
