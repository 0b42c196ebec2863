// SPDX-License-Identifier: Apache-2.0
// The gradient norm over the ranges of a shard.
#include <algorithm>
#include <mutex>

#include "device/cpu/gradient.hpp"
#include "device/cpu/parallel.hpp"

namespace llampi::device {
namespace {

struct Squares {
  SumOfSquares sum{};
  std::int32_t maximum = 0;

  /// Mostly one call of sum_squares(): elements below 2^-23 of the largest need another.
  void add_piece(const Kernels& kernels, std::int64_t n, const float* x) {
    std::int32_t most = kernels.max_magnitude(n, x);
    maximum = std::max(maximum, most);
    if (most >= SumOfSquares::kInfinity) {
      ++count_of(sum, most);
      return;
    }
    while (most > 0) {
      const PieceOfSquares piece = kernels.sum_squares(n, x, most);
      add(sum, static_cast<std::uint64_t>(piece.low), piece.unit);
      add(sum, static_cast<std::uint64_t>(piece.high), piece.unit + PieceOfSquares::kLowBits);
      most = piece.left_out;
    }
  }
};

}  // namespace

// Neither the largest integer nor sums of integers depend on the order in which threads come.
void CpuDevice::execute(const op::SumSquares& o) {
  check_gradient(o.gradient);
  std::int32_t& maximum = *elements_of<std::int32_t>(o.maximum, 1, 1, "maximum");
  SumOfSquares& sum = sum_of_squares(o.sum);
  check_ranges(o.ranges, o.gradient.elements());
  std::mutex mutex;
  for (const UpdateRange& range : o.ranges) {
    parallel_ranges(threads_, range.end - range.begin, kUpdatePiece,
                    [&](std::int64_t begin, std::int64_t end, int) {
                      Squares part;
                      for_each_piece(kernels_, o.gradient, range.begin + begin, range.begin + end,
                                     [&](std::int64_t n, const float* x) { part.add_piece(kernels_, n, x); });
                      const std::lock_guard lock(mutex);
                      sum += with_carries(part.sum);
                      maximum = std::max(maximum, part.maximum);
                    });
  }
}

}  // namespace llampi::device
