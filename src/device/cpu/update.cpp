// The gradient norm over the ranges of a shard.
#include <bit>
#include <cmath>
#include <mutex>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"
#include "llampi/device/grid.hpp"

namespace llampi {
namespace {

constexpr std::int64_t kGrain = 1024;

float* flat(const Tensor& tensor, const char* name) {
  return floats(tensor.slice(0, tensor.elements()), 1, tensor.elements(), name);
}

}  // namespace

// The largest integer and sums of integers do not depend on the order in which threads come.
void CpuDevice::max_magnitude(Tensor gradient_, std::span<const UpdateRange> ranges, Tensor maximum) {
  const float* gradient = flat(gradient_, "gradient");
  std::int32_t& bits = *elements_of<std::int32_t>(maximum, 1, 1, "maximum");
  check_ranges(ranges, gradient_.elements());
  std::mutex mutex;
  for (const UpdateRange& range : ranges) {
    parallel_ranges(
        threads_, range.end - range.begin, kGrain, [&](std::int64_t begin, std::int64_t end, int) {
          const std::int32_t largest = kernels_.max_magnitude(end - begin, gradient + range.begin + begin, 0);
          const std::lock_guard lock(mutex);
          bits = std::max(bits, largest);
        });
  }
  progress();
}

void CpuDevice::sum_squares(Tensor gradient_, std::span<const UpdateRange> ranges, Tensor maximum,
                            Tensor limbs) {
  const float* gradient = flat(gradient_, "gradient");
  const std::int32_t bits = *elements_of<std::int32_t>(maximum, 1, 1, "maximum");
  std::int64_t* sums = elements_of<std::int64_t>(limbs, 1, 2, "limbs");
  check_ranges(ranges, gradient_.elements());
  if (!std::isfinite(std::bit_cast<float>(bits))) return progress();  // finish_norm() sees the same maximum
  const double scale = grid::scale(grid::exponent(bits));
  grid::Limbs total{sums[0], sums[1]};
  std::mutex mutex;
  for (const UpdateRange& range : ranges) {
    parallel_ranges(
        threads_, range.end - range.begin, kGrain, [&](std::int64_t begin, std::int64_t end, int) {
          grid::Limbs part;
          kernels_.sum_squares(end - begin, gradient + range.begin + begin, scale, &part.high, &part.low);
          grid::normalise(part);
          const std::lock_guard lock(mutex);
          total.high += part.high;
          total.low += part.low;
        });
    grid::normalise(total);
  }
  sums[0] = total.high;
  sums[1] = total.low;
  progress();
}

}  // namespace llampi
