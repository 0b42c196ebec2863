// SPDX-License-Identifier: Apache-2.0
// Between float32 and the 16-bit formats.
#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kGrain = 1024;

}  // namespace

void CpuDevice::cast(Tensor source, Tensor destination) {
  if (source.dtype == destination.dtype) return copy(source, destination);
  require(source.elements() == destination.elements(), "cast between tensors of unlike sizes");
  const bool narrow = source.dtype == DType::float32;
  const DType half = narrow ? destination.dtype : source.dtype;
  const bool brain = half == DType::bfloat16;
  if ((!brain && half != DType::float16) || (!narrow && destination.dtype != DType::float32)) {
    throw Error(fmt::format("this device has no kernels that cast {} to {}", to_string(source.dtype),
                            to_string(destination.dtype)));
  }
  const auto convert = [&](auto kernel, const auto* from, auto* to) {
    parallel_ranges(threads_, source.elements(), kGrain, [=](std::int64_t begin, std::int64_t end, int) {
      kernel(end - begin, from + begin, to + begin);
    });
  };
  if (narrow) {
    convert(brain ? kernels_.to_bfloat16 : kernels_.to_float16, static_cast<const float*>(source.data),
            halves(destination));
  } else {
    convert(brain ? kernels_.from_bfloat16 : kernels_.from_float16, halves(source),
            static_cast<float*>(destination.data));
  }
  progress();
}

}  // namespace llampi::device
