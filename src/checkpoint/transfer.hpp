// Ranges of a flattened tensor as HDF5 selections.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <vector>

namespace llampi {

/// A block of a tensor of one or two dimensions; for one dimension only the first numbers count.
struct Hyperslab {
  hsize_t start[2] = {0, 0};
  hsize_t count[2] = {1, 1};
};

/// Elements [begin, begin + elements) of a row-major tensor: part of a row, full rows, part of a row; at most
/// three blocks.
std::vector<Hyperslab> hyperslabs(const std::vector<std::int64_t>& shape, std::int64_t begin,
                                  std::int64_t elements);

/// Writes or reads those elements of a float32 dataset, by this rank alone. @throws hdf5::Failure
void write_range(hid_t dataset, const std::vector<std::int64_t>& shape, std::int64_t begin,
                 std::int64_t elements, const float* values);
void read_range(hid_t dataset, const std::vector<std::int64_t>& shape, std::int64_t begin,
                std::int64_t elements, float* values);

}  // namespace llampi
