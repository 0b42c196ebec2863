// SPDX-License-Identifier: Apache-2.0
// The gradient norm over the ranges of a shard.
#include <bit>
#include <cmath>
#include <mutex>

#include "device/cpu/gradient.hpp"
#include "device/cpu/parallel.hpp"
#include "llampi/device/grid.hpp"

namespace llampi::device {
namespace {

std::int32_t largest_of(const Kernels& kernels, const Tensor& gradient, std::int64_t begin,
                        std::int64_t end) {
  std::int32_t bits = 0;
  for_each_part(kernels, gradient, begin, end,
                [&](std::int64_t n, const float* x) { bits = kernels.max_magnitude(n, x, bits); });
  return bits;
}

grid::Limbs squares_of(const Kernels& kernels, const Tensor& gradient, std::int64_t begin, std::int64_t end,
                       double scale) {
  grid::Limbs sum;
  for_each_part(kernels, gradient, begin, end, [&](std::int64_t n, const float* x) {
    kernels.sum_squares(n, x, scale, &sum.high, &sum.low);
  });
  grid::normalise(sum);
  return sum;
}

}  // namespace

// The largest integer and sums of integers do not depend on the order in which threads come.
void CpuDevice::execute(const op::MaxMagnitude& o) {
  check_gradient(o.gradient);
  std::int32_t& bits = *elements_of<std::int32_t>(o.maximum, 1, 1, "maximum");
  check_ranges(o.ranges, o.gradient.elements());
  std::mutex mutex;
  for (const UpdateRange& range : o.ranges) {
    parallel_ranges(threads_, range.end - range.begin, kUpdatePiece,
                    [&](std::int64_t begin, std::int64_t end, int) {
                      const std::int32_t largest =
                          largest_of(kernels_, o.gradient, range.begin + begin, range.begin + end);
                      const std::lock_guard lock(mutex);
                      bits = std::max(bits, largest);
                    });
  }
}

void CpuDevice::execute(const op::SumSquares& o) {
  check_gradient(o.gradient);
  const std::int32_t bits = *elements_of<std::int32_t>(o.maximum, 1, 1, "maximum");
  std::int64_t* sums = elements_of<std::int64_t>(o.limbs, 1, 2, "limbs");
  check_ranges(o.ranges, o.gradient.elements());
  if (!std::isfinite(std::bit_cast<float>(bits))) return;  // finish_norm() sees the same o.maximum
  const double scale = grid::scale(grid::exponent(bits));
  grid::Limbs total{sums[0], sums[1]};
  std::mutex mutex;
  for (const UpdateRange& range : o.ranges) {
    parallel_ranges(threads_, range.end - range.begin, kUpdatePiece,
                    [&](std::int64_t begin, std::int64_t end, int) {
                      const grid::Limbs part =
                          squares_of(kernels_, o.gradient, range.begin + begin, range.begin + end, scale);
                      const std::lock_guard lock(mutex);
                      total.high += part.high;
                      total.low += part.low;
                    });
    grid::normalise(total);
  }
  sums[0] = total.high;
  sums[1] = total.low;
}

}  // namespace llampi::device
