// SPDX-License-Identifier: Apache-2.0
// Which of a library's ways to compute a product is the fastest here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/cuda/product_library.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::device::cuda {

struct NamedWay : LibraryProduct::Way {
  std::string name;  ///< what a choice is remembered by
};

/// All that can be used here; where what is added lies elsewhere, first those that need no copy.
std::vector<NamedWay> ways_of(const LibraryProduct& product, bool in_place);

/// Tries the ways to compute a product on its own operands, so that the GPU draws the power that these cost.
class ProductTimer {
 public:
  /// @param workspace holds also what the timer itself computes; belongs to `stream`, as do the operands
  ProductTimer(LibraryProduct& product, const ColumnProduct& asked, const ColumnOperands& operands,
               const Tensor& workspace, cudaStream_t stream);

  struct Choice {
    NamedWay way;
    bool repeats_its_bits = true;
  };
  /// Those that fail are left out.
  /// @param must_repeat of those that have the same bits in each run, if there is one
  /// @throws Error if all fail
  Choice fastest(const std::vector<NamedWay>& ways, bool must_repeat) const;

 private:
  struct Timed {
    NamedWay way;
    double seconds = 0;
  };
  /// The fastest first. @throws Error if all fail
  std::vector<Timed> times_of(const std::vector<NamedWay>& ways) const;
  double seconds_of(const LibraryProduct::Way& way, int runs) const;
  bool repeats_its_bits(const LibraryProduct::Way& way) const;
  std::uint64_t checksum_of_run(const LibraryProduct::Way& way) const;

  LibraryProduct& product_;
  ColumnOperands operands_;
  Tensor workspace_;
  cudaStream_t stream_;
  bool in_place_;
  std::int64_t result_bytes_;
};

}  // namespace llampi::device::cuda
