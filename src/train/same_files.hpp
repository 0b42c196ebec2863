// SPDX-License-Identifier: Apache-2.0
// Whether files that each node has a copy of hold the same bytes everywhere. Nodes that read one shared file read it all the same:
// nothing tells reliably that it is one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"

namespace llampi::train {

inline constexpr std::int64_t kCompareBlockBytes = std::int64_t{4} << 20;

/// How much is read, at most. What files have beyond that is sampled.
struct CompareLimits {
  std::int64_t rank_bytes = std::int64_t{2} << 30;
  std::int64_t job_bytes = std::int64_t{1} << 40;  ///< divided among all ranks
};

struct FileComparison {
  /// Ranks of a node that see the same files (devices and inodes) are one reader: they divide the reading among them. 1: there is
  /// nothing to compare, and nothing was read.
  int readers = 0;
  int files = 0;
  std::int64_t bytes = 0;           ///< of all files
  std::int64_t compared_bytes = 0;  ///< by each reader: `bytes`, or less where they are sampled
  std::string difference;           ///< which nodes or ranks have what, and the others; empty: none
};

/// A part of one of several files.
struct FileBlock {
  int file = 0;
  std::int64_t begin = 0, bytes = 0;

  bool operator==(const FileBlock&) const = default;
};
/// All blocks of files of these sizes if they are at most `most`. If not, every n-th of them, with the first and the last of each
/// file, for the smallest n that takes at most `most` but for those.
std::vector<FileBlock> blocks_to_compare(const std::vector<std::int64_t>& sizes, std::int64_t most);

/// Every rank lists its files with `list`. Sizes are compared, and then checksums of blocks; so any one changed byte of a block that is
/// read is found. Collective; the same on all ranks.
/// @throws UserError if no rank can list its files
FileComparison compare_files(comm::World& world,
                             const std::function<std::vector<std::filesystem::path>()>& list,
                             const CompareLimits& limits = {});

}  // namespace llampi::train
