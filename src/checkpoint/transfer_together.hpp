// SPDX-License-Identifier: Apache-2.0
// The values of a checkpoint's tensors through parallel HDF5, one dataset after another. All ranks read their pieces together. In
// writing, the first rank of each group writes for its group, together with the other first ranks. A dataset takes as many rounds as
// the rank with the most of it needs.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "checkpoint/node_ranks.hpp"
#include "checkpoint/stored_values.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/io/block_sums.hpp"

namespace llampi::checkpoint {

struct TransferTogether {
  comm::World& world;
  const NodeRanks& ranks;
  device::Runtime& device;
  const std::filesystem::path& file;
  const std::vector<TensorInfo>& tensors;
  const std::vector<TensorPiece>& pieces;  ///< this rank's
  const Places& places;                    ///< which datasets there are, and of which elements
  std::int64_t transfer_elements;          ///< of a group and round, or of a rank that reads
  std::int64_t block_elements;             ///< of sums; 0: none are wanted
  std::function<void()> progress = {};     ///< called after each round
};

// Collective. A rank on which something fails takes part until the end and then throws; the other ranks return. After failures
// that HDF5 itself does not survive, above all that of one rank while the file is closed, the other ranks hang.
// Returns the checksums of this rank's pieces.
/// When it returns, everything is on the disk.
std::vector<io::RangeSum> write_together(const TransferTogether& transfer);
/// Values of datasets that are not there become 0.
std::vector<io::RangeSum> read_together(const TransferTogether& transfer);

}  // namespace llampi::checkpoint
