// SPDX-License-Identifier: Apache-2.0
// Between float32 and the 16-bit formats.
#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kGrain = 1024;

}  // namespace

void CpuDevice::execute(const op::Cast& o) {
  if (o.source.dtype == o.destination.dtype) return execute(op::Copy{o.source, o.destination});
  require(o.source.elements() == o.destination.elements(), "cast between tensors of unlike sizes");
  const bool narrow = o.source.dtype == DType::float32;
  const DType half = narrow ? o.destination.dtype : o.source.dtype;
  const bool brain = half == DType::bfloat16;
  if ((!brain && half != DType::float16) || (!narrow && o.destination.dtype != DType::float32)) {
    throw Error(fmt::format("this device has no kernels that cast {} to {}", to_string(o.source.dtype),
                            to_string(o.destination.dtype)));
  }
  const auto convert = [&](auto kernel, const auto* from, auto* to) {
    parallel_ranges(threads_, o.source.elements(), kGrain, [=](std::int64_t begin, std::int64_t end, int) {
      kernel(end - begin, from + begin, to + begin);
    });
  };
  if (narrow) {
    convert(brain ? kernels_.to_bfloat16 : kernels_.to_float16, static_cast<const float*>(o.source.data),
            halves(o.destination));
  } else {
    convert(brain ? kernels_.from_bfloat16 : kernels_.from_float16, halves(o.source),
            static_cast<float*>(o.destination.data));
  }
}

}  // namespace llampi::device
