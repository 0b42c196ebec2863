// SPDX-License-Identifier: Apache-2.0
// CRC-32 of blocks of values, combined from parts that any rank may have written or read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace llampi::io {

/// Elements of a block: 4 MiB. Each block has its CRC-32.
inline constexpr std::int64_t kChecksumBlockElements = std::int64_t{1} << 20;

/// The CRC-32 of zlib and of Python's zlib.crc32; of more bytes, going on from `before`.
std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The CRC-32 of elements [begin, begin + elements) of a dataset, which lie in one block.
struct RangeSum {
  int dataset = 0;
  std::uint32_t crc = 0;
  std::int64_t begin = 0, elements = 0;

  bool operator==(const RangeSum&) const = default;
};

std::int64_t blocks_of(std::int64_t elements, std::int64_t block_elements);

/// Adds the sums of a range of values: one for each block that it touches.
/// @param values as they lie in the file, of `element_bytes` each
void add_sums(std::vector<RangeSum>& sums, int dataset, std::int64_t begin, std::span<const std::byte> values,
              std::int64_t element_bytes, std::int64_t block_elements);
/// The same of float32.
void add_sums(std::vector<RangeSum>& sums, int dataset, std::int64_t begin, std::span<const float> values,
              std::int64_t block_elements);

struct BlockSums {
  std::vector<RangeSum> whole;  ///< blocks that the ranges cover, in order
  std::vector<RangeSum> parts;  ///< the ranges of the other blocks
};

/// Puts the sums of ranges together: ranges in any order, which may overlap and repeat each other. A block
/// comes once, or, where values that were summed twice were not the same, once for each sum that results.
/// @param dataset_elements by RangeSum::dataset
/// @param element_bytes by RangeSum::dataset; none: all are float32
BlockSums combine(std::vector<RangeSum> sums, const std::vector<std::int64_t>& dataset_elements,
                  std::int64_t block_elements, const std::vector<std::int64_t>& element_bytes = {});

}  // namespace llampi::io
