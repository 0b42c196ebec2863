// SPDX-License-Identifier: Apache-2.0
#include "gpu/noise.hpp"

#include <algorithm>
#include <vector>

#include "llampi/core/half.hpp"
#include "llampi/core/philox.hpp"

namespace llampi::bench {
namespace {

constexpr std::int64_t kElements = (std::int64_t{1} << 20) + 64;
constexpr double kDeviation = 0.02;  // initializer_range of Llama

void upload(device::Device& device, const std::vector<float>& values, Tensor target) {
  std::vector<std::uint16_t> narrow;
  if (target.dtype == DType::bfloat16)
    std::transform(values.begin(), values.end(), std::back_inserter(narrow), to_bfloat16);
  require(target.dtype == DType::float32 || target.dtype == DType::bfloat16, "noise in another dtype");
  const void* source = narrow.empty() ? static_cast<const void*>(values.data()) : narrow.data();
  device.upload(target, source, device::Stream::compute);
  device.synchronize(device::Stream::compute);
}

}  // namespace

Noise::Noise(device::Device& device, DType dtype)
    : device_(device),
      memory_(device.allocate(kElements * size_of(dtype))),
      block_{memory_.data(), dtype, 1, kElements} {
  const RandomStream random(0, "noise");
  std::vector<float> values;
  for (std::int64_t i = 0; i < kElements; ++i)
    values.push_back(static_cast<float>(kDeviation * random.normal(static_cast<std::uint64_t>(i))));
  upload(device, values, block_);
}

void Noise::fill(Tensor tensor) const {
  for (std::int64_t begin = 0; begin < tensor.elements(); begin += kElements) {
    const std::int64_t count = std::min(kElements, tensor.elements() - begin);
    device_.run(device::op::Copy{.source = block_.slice(0, count),
                                 .destination = tensor.slice(begin, begin + count)});
  }
}

void fill_parameters(fsdp::Engine& engine, device::Device& device) {
  const auto pieces = engine.pieces_to_load();
  if (pieces.empty()) return;
  const Noise noise(device, pieces.front().master.dtype);
  for (const auto& piece : pieces) {
    const auto& parameter = engine.model().parameters()[static_cast<std::size_t>(piece.parameter)];
    if (parameter.initializer.kind == model::Initializer::Kind::ones) {
      upload(device, std::vector<float>(static_cast<std::size_t>(piece.master.elements()), 1.0F),
             piece.master);
    } else {
      noise.fill(piece.master);
    }
  }
  device.synchronize(device::Stream::compute);
}

}  // namespace llampi::bench
