// SPDX-License-Identifier: Apache-2.0
// Random weights.
#include <algorithm>
#include <array>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"
#include "llampi/core/elements.hpp"

namespace llampi::device {

void CpuDevice::execute(const op::RandomNormal& o) {
  constexpr std::int64_t kAtOnce = 1024;
  const auto source_at = [&o](std::int64_t element) {
    return NormalSource{o.stream.key(), o.stream.purpose(), static_cast<std::uint64_t>(o.first + element)};
  };
  const double deviation = o.standard_deviation;
  if (o.out.dtype == DType::float32) {
    auto* const out = static_cast<float*>(o.out.data);
    parallel_ranges(threads_, o.out.elements(), kAtOnce, [&](std::int64_t begin, std::int64_t end, int) {
      kernels_.normal(end - begin, source_at(begin), deviation, out + begin);
    });
    return;
  }
  if (!is_half(o.out.dtype))
    throw Error(fmt::format("this device has no kernels for random numbers in {}", to_string(o.out.dtype)));
  const auto narrow = o.out.dtype == DType::bfloat16 ? kernels_.to_bfloat16 : kernels_.to_float16;
  auto* const out = halves(o.out);
  parallel_ranges(threads_, o.out.elements(), kAtOnce, [&](std::int64_t begin, std::int64_t end, int) {
    std::array<float, kAtOnce> single;
    for (; begin < end; begin += kAtOnce) {
      const std::int64_t count = std::min(kAtOnce, end - begin);
      kernels_.normal(count, source_at(begin), deviation, single.data());
      narrow(count, single.data(), out + begin);
    }
  });
}

}  // namespace llampi::device
