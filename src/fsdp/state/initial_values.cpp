// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fsdp/state/views.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/philox.hpp"

namespace llampi::fsdp {
namespace {

/// Uploads host values in the dtype of the target.
void upload_values(device::Device& device, const std::vector<double>& values, Tensor target) {
  const std::vector<float> single(values.begin(), values.end());
  std::vector<std::uint16_t> narrow;
  const void* source = values.data();
  if (target.dtype == DType::float32) source = single.data();
  if (size_of(target.dtype) == 2) {
    for (const float value : single)
      narrow.push_back(target.dtype == DType::bfloat16 ? to_bfloat16(value) : to_float16(value));
    source = narrow.data();
  }
  device.upload(target, source, device::Stream::compute);
  device.synchronize(device::Stream::compute);
}

}  // namespace

void fill_with_initial_values(const model::Model& model, device::Device& device,
                              const std::vector<StatePiece>& pieces, std::uint64_t seed) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 20;
  for (const auto& piece : pieces) {
    const auto& parameter = model.parameters()[piece.parameter];
    const RandomStream random(seed, "init " + parameter.name);
    for (std::int64_t begin = 0; begin < piece.master.elements(); begin += kChunk) {
      const std::int64_t count = std::min(kChunk, piece.master.elements() - begin);
      std::vector<double> values(count, 1.0);
      if (parameter.initializer.kind == model::Initializer::Kind::normal) {
        for (std::int64_t i = 0; i < count; ++i) {
          values[i] = parameter.initializer.standard_deviation * random.normal(piece.begin + begin + i);
        }
      }
      upload_values(device, values, piece.master.slice(begin, begin + count));
    }
  }
}

}  // namespace llampi::fsdp
