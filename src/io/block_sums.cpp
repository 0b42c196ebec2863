// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/block_sums.hpp"

#include <libdeflate.h>
#include <zlib.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace llampi::io {
namespace {

/// The CRC-32 of some bytes whose CRC-32 is `before`, followed by the range of `sum`.
std::uint32_t joined(std::uint32_t before, const RangeSum& sum, std::int64_t element_bytes) {
  const auto bytes = static_cast<z_off_t>(sum.elements * element_bytes);
  return static_cast<std::uint32_t>(crc32_combine(before, sum.crc, bytes));
}

/// The CRC-32s of [begin, end) that follow from the ranges: one for each way to cover it with ranges that join. They differ if a part
/// was read or written with different values.
std::set<std::uint32_t> chained(std::span<const RangeSum> sums, std::int64_t begin, std::int64_t end,
                                std::int64_t element_bytes) {
  std::map<std::int64_t, std::set<std::uint32_t>> up_to{{begin, {0}}};  // of nothing
  for (const auto& sum : sums) {  // by their beginnings, so that what leads to one comes before it
    const auto before = up_to.find(sum.begin);
    if (before == up_to.end() || sum.elements == 0) continue;
    for (const auto crc : before->second)
      up_to[sum.begin + sum.elements].insert(joined(crc, sum, element_bytes));
  }
  return up_to[end];
}

}  // namespace

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t before) {
  if (bytes.empty()) return before;  // of no memory libdeflate says 0
  return libdeflate_crc32(before, bytes.data(), bytes.size());
}

std::int64_t blocks_of(std::int64_t elements, std::int64_t block_elements) {
  return elements / block_elements + (elements % block_elements != 0 ? 1 : 0);
}

void add_sums(std::vector<RangeSum>& sums, int dataset, std::int64_t begin, std::span<const float> values,
              std::int64_t block_elements) {
  add_sums(sums, dataset, begin, std::as_bytes(values), sizeof(float), block_elements);
}

void add_sums(std::vector<RangeSum>& sums, int dataset, std::int64_t begin, std::span<const std::byte> values,
              std::int64_t element_bytes, std::int64_t block_elements) {
  while (!values.empty()) {
    const std::int64_t left = (block_elements - begin % block_elements) * element_bytes;
    const auto part = values.first(std::min(values.size(), static_cast<std::size_t>(left)));
    const auto elements = std::ssize(part) / element_bytes;
    sums.push_back({dataset, crc32_of(part), begin, elements});
    values = values.subspan(part.size());
    begin += elements;
  }
}

BlockSums combine(std::vector<RangeSum> sums, const std::vector<std::int64_t>& dataset_elements,
                  std::int64_t block_elements, const std::vector<std::int64_t>& element_bytes) {
  std::sort(sums.begin(), sums.end(), [](const RangeSum& a, const RangeSum& b) {
    return std::tie(a.dataset, a.begin, a.elements, a.crc) < std::tie(b.dataset, b.begin, b.elements, b.crc);
  });
  BlockSums result;
  for (std::size_t first = 0, last = 0; first < sums.size(); first = last) {
    const int dataset = sums[first].dataset;
    const std::int64_t begin = sums[first].begin / block_elements * block_elements;
    const std::int64_t elements =
        std::min(block_elements, dataset_elements[static_cast<std::size_t>(dataset)] - begin);
    while (last < sums.size() && sums[last].dataset == dataset && sums[last].begin - begin < block_elements)
      ++last;
    const auto ranges = std::span(sums).subspan(first, last - first);
    const std::int64_t bytes = element_bytes.empty() ? std::int64_t{sizeof(float)}
                                                     : element_bytes[static_cast<std::size_t>(dataset)];
    const auto crcs = chained(ranges, begin, begin + elements, bytes);
    for (const auto crc : crcs) result.whole.push_back({dataset, crc, begin, elements});
    if (crcs.empty()) result.parts.insert(result.parts.end(), ranges.begin(), ranges.end());
  }
  return result;
}

}  // namespace llampi::io
