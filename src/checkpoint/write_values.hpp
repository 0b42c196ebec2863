// SPDX-License-Identifier: Apache-2.0
// The values of a checkpoint's tensors from the ranks' memory into a file that is laid out: each rank by itself, or some for
// the ranks of their node. No rank waits for another one that has failed.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "checkpoint/node_ranks.hpp"
#include "checkpoint/save_options.hpp"
#include "checkpoint/stored_values.hpp"
#include "llampi/io/shared_file.hpp"

namespace llampi::checkpoint {

/// Synced every so many bytes: with a slow disk a single sync at the end would take so long that the save would seem to hang.
inline constexpr std::int64_t kSyncBytes = std::int64_t{1} << 30;

/// A file in which values have their places.
class ValueFile {
 public:
  ValueFile(const std::filesystem::path& file, const FileSettings& settings)
      : settings_(settings), file_(file) {}

  void write_at(std::int64_t offset, std::span<const std::byte> bytes);
  /// Waits until all that this rank has written is on the disk.
  void sync();

 private:
  void tell_progress() const;

  const FileSettings& settings_;
  io::SharedFile file_;
  std::int64_t unsynced_ = 0;  ///< bytes
};

/// What is written.
struct ValuesToWrite {
  const std::filesystem::path& file;
  const std::vector<TensorInfo>& tensors;  ///< `optimizer`: with moments
  const std::vector<TensorPiece>& pieces;  ///< this rank's
  const Places& places;
  const SaveOptions& options;
};

/// Writes values at their place and adds their sums.
class ValueWriter {
 public:
  explicit ValueWriter(const ValuesToWrite& values)
      : values_(values), file_(values.file, values.options.file) {}

  /// Elements from `begin` on of a tensor.
  void write(std::size_t role, int tensor, std::int64_t begin, std::span<const float> elements);
  std::vector<io::RangeSum> finish();  ///< all that was written is on the disk; the sums

 private:
  const ValuesToWrite& values_;
  ValueFile file_;
  Encoding encoding_;
  std::vector<io::RangeSum> sums_;
};

/// Writes the pieces of all ranks of a group. The first rank of the group collects and writes them, one window of the file after
/// another. Collective over the group: a rank on which something fails takes part until the end and then throws. Returns the
/// checksums of this rank's pieces.
std::vector<io::RangeSum> write_pieces(device::Runtime& device, const NodeRanks& ranks,
                                       const ValuesToWrite& values);

/// The least multiple of the stripes of a file that has `least` bytes. @param stripe_bytes 0: as the file system says
std::int64_t window_bytes(const std::filesystem::path& file, std::int64_t stripe_bytes, std::int64_t least);

}  // namespace llampi::checkpoint
