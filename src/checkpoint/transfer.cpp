#include "checkpoint/transfer.hpp"

#include <algorithm>
#include <utility>

#include "data/hdf5.hpp"
#include "llampi/core/error.hpp"

namespace llampi {
namespace {

using hdf5::check;

/// Selections in the file and in memory. The elements of a selection come in the order of the tensor, and the
/// blocks of a range touch, so in the file too this is one run of bytes.
std::pair<hdf5::Dataspace, hdf5::Dataspace> select(const std::vector<std::int64_t>& shape, std::int64_t begin,
                                                   std::int64_t elements) {
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  hdf5::Dataspace in_file(
      check(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), "H5Screate_simple"));
  check(H5Sselect_none(in_file.id()), "H5Sselect_none");
  for (const auto& block : hyperslabs(shape, begin, elements)) {
    check(H5Sselect_hyperslab(in_file.id(), H5S_SELECT_OR, block.start, nullptr, block.count, nullptr),
          "H5Sselect_hyperslab");
  }
  const auto length = static_cast<hsize_t>(elements);
  hdf5::Dataspace in_memory(check(H5Screate_simple(1, &length, nullptr), "H5Screate_simple"));
  return {std::move(in_file), std::move(in_memory)};
}

}  // namespace

std::vector<Hyperslab> hyperslabs(const std::vector<std::int64_t>& shape, std::int64_t begin,
                                  std::int64_t elements) {
  require(shape.size() == 1 || shape.size() == 2, "a tensor of one or two dimensions");
  const auto block = [](std::int64_t row, std::int64_t col, std::int64_t rows, std::int64_t cols) {
    return Hyperslab{{static_cast<hsize_t>(row), static_cast<hsize_t>(col)},
                     {static_cast<hsize_t>(rows), static_cast<hsize_t>(cols)}};
  };
  std::vector<Hyperslab> blocks;
  if (elements == 0) return blocks;
  if (shape.size() == 1) return {block(begin, 0, elements, 1)};

  const std::int64_t cols = shape[1], end = begin + elements;
  while (begin < end) {
    const std::int64_t row = begin / cols, col = begin % cols;
    if (col == 0 && end - begin >= cols) {
      const std::int64_t rows = (end - begin) / cols;
      blocks.push_back(block(row, 0, rows, cols));
      begin += rows * cols;
    } else {
      const std::int64_t part = std::min(cols - col, end - begin);
      blocks.push_back(block(row, col, 1, part));
      begin += part;
    }
  }
  return blocks;
}

void write_range(hid_t dataset, const std::vector<std::int64_t>& shape, std::int64_t begin,
                 std::int64_t elements, const float* values) {
  const Hdf5Lock lock;
  const auto [in_file, in_memory] = select(shape, begin, elements);
  check(H5Dwrite(dataset, H5T_NATIVE_FLOAT, in_memory.id(), in_file.id(), H5P_DEFAULT, values), "H5Dwrite");
}

void read_range(hid_t dataset, const std::vector<std::int64_t>& shape, std::int64_t begin,
                std::int64_t elements, float* values) {
  const Hdf5Lock lock;
  const auto [in_file, in_memory] = select(shape, begin, elements);
  check(H5Dread(dataset, H5T_NATIVE_FLOAT, in_memory.id(), in_file.id(), H5P_DEFAULT, values), "H5Dread");
}

}  // namespace llampi
