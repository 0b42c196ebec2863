// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/sizes.hpp"

#include <algorithm>

#include "device/cpu/kernels.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/device/device.hpp"

namespace llampi::device {
namespace {

// The weight's gradient is read and written once per chunk, so a chunk is not to be too short.
constexpr std::int64_t kHeadRows = 256;
constexpr std::int64_t kHeadBytes = std::int64_t{128} << 20;

void require_float32(DType dtype) {
  if (dtype != DType::float32)
    throw Error(fmt::format("the CPU device has no kernels for {}", to_string(dtype)));
}

}  // namespace

std::int64_t CpuSizes::score_stride(std::int64_t longest) {
  // One more vector than needed, so that rows of a power of two do not share their cache sets.
  return round_up(longest, kRowPadding) + kRowPadding;
}

std::int64_t CpuSizes::attention_workspace(AttentionShape, std::int64_t, std::int64_t longest,
                                           DType dtype) const {
  require_float32(dtype);
  return threads_ * score_elements(longest) * size_of(dtype);
}

std::int64_t CpuSizes::attention_backward_workspace(AttentionShape, std::int64_t, std::int64_t longest,
                                                    DType dtype, std::int64_t) const {
  require_float32(dtype);
  return threads_ * 2 * score_elements(longest) * size_of(dtype);
}

std::int64_t CpuSizes::rms_norm_backward_workspace(std::int64_t, std::int64_t hidden, DType dtype) const {
  require_float32(dtype);
  return threads_ * hidden * size_of(DType::float64);
}

std::int64_t CpuSizes::qkv_transform_backward_workspace(AttentionShape shape, std::int64_t,
                                                        DType dtype) const {
  require_float32(dtype);
  return threads_ * 2 * shape.head_dim * size_of(DType::float64);
}

std::int64_t CpuSizes::head_rows(std::int64_t tokens, std::int64_t vocabulary) {
  const std::int64_t fitting = kHeadBytes / (vocabulary * size_of(DType::float32));
  return std::max<std::int64_t>(1, std::min({tokens, kHeadRows, fitting}));
}

std::int64_t CpuSizes::linear_cross_entropy_workspace(std::int64_t tokens, std::int64_t vocabulary,
                                                      DType dtype, std::int64_t /*logits_bytes*/) const {
  require_float32(dtype);
  // The losses of the rows stand first, so that they are aligned.
  return head_rows(tokens, vocabulary) * (size_of(DType::float64) + vocabulary * size_of(dtype));
}

std::unique_ptr<OperationSizes> make_cpu_sizes(int threads) {
  require(threads >= 1, "a device needs a thread");
  return std::make_unique<CpuSizes>(threads);
}

}  // namespace llampi::device
