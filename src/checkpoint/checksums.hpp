// SPDX-License-Identifier: Apache-2.0
// The checksums in a checkpoint: one for each block of each dataset, and one for everything else that is
// read. See docs/formats.md.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/schema.hpp"
#include "llampi/io/block_sums.hpp"

namespace llampi::checkpoint {

struct DatasetSums {
  std::string path;  ///< "/model/lm_head.weight"; empty: not in the file
  std::vector<std::int64_t> shape;
  std::vector<std::uint32_t> blocks;
  std::int64_t element_bytes = sizeof(float);

  auto members() { return std::tie(path, shape, blocks, element_bytes); }
};

struct Checksums {
  std::int64_t block_elements = 0;    ///< 0: the file has no checksums
  std::vector<DatasetSums> datasets;  ///< RangeSum::dataset is an index into them

  explicit operator bool() const { return block_elements > 0; }
  std::vector<std::int64_t> elements() const;       ///< of each dataset
  std::vector<std::int64_t> element_bytes() const;  ///< of each dataset
  /// Blocks of what was read or written.
  io::BlockSums combine(std::vector<io::RangeSum> sums) const {
    return io::combine(std::move(sums), elements(), block_elements, element_bytes());
  }
  auto members() { return std::tie(block_elements, datasets); }
};

/// Where a tensor's dataset is among those of a file with these tensors.
inline int dataset_index(std::size_t role, int tensor, std::size_t tensors) {
  return static_cast<int>(role * tensors) + tensor;
}
/// Those of a file that is to have these tensors, with moments of this dtype, all 0.
Checksums checksums_for(const std::vector<TensorInfo>& tensors, std::int64_t block_elements, DType moments);
/// @throws Error unless each block is there once
void set_blocks(Checksums& checksums, const std::vector<io::RangeSum>& whole);

/// Covers names, shapes, state, texts, and the checksums of the values.
std::uint32_t metadata_checksum(const CheckpointSummary& about, const Checksums& checksums);

/// The attributes of a new file: first created, when the values are known written.
void create_checksums(hid_t file, const Datasets& datasets, const Checksums& checksums);
void write_checksums(hid_t file, const Datasets& datasets, const Checksums& checksums,
                     std::uint32_t metadata);

bool has_checksums(hid_t file);
std::uint32_t read_metadata_checksum(hid_t file);
/// Of all datasets that the file has, in some order. @throws UserError if some are missing
Checksums read_all_checksums(hid_t file);

/// Everything but the values.
struct Metadata {
  CheckpointSummary summary;
  Checksums checksums;  ///< of all datasets
};
/// Compares it with its checksum, if the file has checksums. @throws UserError, DamagedCheckpoint
Metadata read_metadata(hid_t file, const std::filesystem::path& path);
/// Those of these tensors, which the file has, by dataset_index().
Checksums checksums_of(const Metadata& metadata, const std::vector<TensorInfo>& tensors);
/// Compares blocks that were read with what they should be. @throws DamagedCheckpoint naming the dataset
void require_right(const std::filesystem::path& file, const Checksums& checksums,
                   const std::vector<io::RangeSum>& whole);

}  // namespace llampi::checkpoint
