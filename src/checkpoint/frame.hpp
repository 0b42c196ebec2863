// SPDX-License-Identifier: Apache-2.0
// A checkpoint's file without the values of its tensors, as HDF5 makes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/checksums.hpp"
#include "checkpoint/stored_values.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::checkpoint {

/// Rank 0's. HDF5 makes the file in memory, of which only what it writes is used, and the bytes are copied
/// from there: a disk that fails cannot fail HDF5, which can then neither close its file nor leave it open.
class Frame {
 public:
  Frame() = default;
  /// With the tensors of `about`. @throws hdf5::Failure
  Frame(const CheckpointSummary& about, const FileSettings& settings, std::int64_t checksum_block_elements);

  const Places& places() const { return places_; }
  /// Writes everything but values and checksums, so that HDF5 can open `file`, which is there.
  void lay_out(const std::filesystem::path& file);
  /// Enters the checksums. @param sums of all values
  void complete(const CheckpointSummary& about, std::vector<io::RangeSum> sums);
  /// Writes everything but the values; `out` may have those already. @throws as PosixFile
  void write_to(const io::PosixFile& out) const;

 private:
  struct Range {
    std::int64_t begin, end;
  };
  void close();
  /// The values' bytes, in order.
  std::vector<Range> values() const;

  io::PosixFile memory_;
  io::hdf5::File file_;  // gone before its memory
  Datasets datasets_;
  Places places_;
  Checksums checksums_;
};

}  // namespace llampi::checkpoint
