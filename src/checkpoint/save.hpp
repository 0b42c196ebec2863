// save_checkpoint() with what tests vary.
#pragma once

#include "checkpoint/block_sums.hpp"
#include "checkpoint/schema.hpp"

namespace llampi {

struct SaveOptions {
  FileSettings file;
  /// Refuse before writing if the file system has not enough space. Off in tests of a disk that fills up
  /// while writing.
  bool check_free_space = true;
  std::int64_t block_elements = kChecksumBlockElements;
};

void save_checkpoint(World& world, Device& device, const std::filesystem::path& file,
                     const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                     const TrainingState& state, const CheckpointTexts& texts, const SaveOptions& options);

}  // namespace llampi
