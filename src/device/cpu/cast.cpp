// SPDX-License-Identifier: Apache-2.0
// Between float32 and the 16-bit formats; from blocks of 8 bits to float32.
#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"
#include "llampi/core/int8_blocks.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kGrain = 1024;

void widen_blocks(int threads, const Tensor& source, const Tensor& destination) {
  const auto* const blocks = static_cast<const Int8Block*>(source.data);
  auto* const values = destination.as<float>();
  parallel_ranges(threads, source.elements() / kInt8BlockElements, kGrain / kInt8BlockElements,
                  [=](std::int64_t begin, std::int64_t end, int) {
                    from_int8_blocks(blocks + begin, (end - begin) * kInt8BlockElements,
                                     values + begin * kInt8BlockElements);
                  });
}

}  // namespace

void CpuDevice::execute(const op::Cast& o) {
  if (o.source.dtype == o.destination.dtype) return execute(op::Copy{o.source, o.destination});
  require(o.source.elements() == o.destination.elements(), "cast between tensors of unlike sizes");
  if (o.source.dtype == DType::int8_blocks && o.destination.dtype == DType::float32)
    return widen_blocks(threads_, o.source, o.destination);
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
