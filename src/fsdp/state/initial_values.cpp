// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fsdp/state/views.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/philox.hpp"

namespace llampi::fsdp {
namespace {

void fill_with_ones(device::Device& device, Tensor target) {
  const auto count = static_cast<std::size_t>(target.elements());
  const auto fill = [&](auto one) {
    const std::vector<decltype(one)> values(count, one);
    device.upload(target, values.data(), device::Stream::compute);
    device.synchronize(device::Stream::compute);
  };
  switch (target.dtype) {
    case DType::float64:
      return fill(1.0);
    case DType::float32:
      return fill(1.0F);
    case DType::bfloat16:
      return fill(to_bfloat16(1.0F));
    case DType::float16:
      return fill(to_float16(1.0F));
    default:
      throw Error(fmt::format("internal error: parameters in {}", to_string(target.dtype)));
  }
}

}  // namespace

void fill_with_initial_values(const model::Model& model, device::Device& device, device::Device& host,
                              const std::vector<StatePiece>& pieces, std::uint64_t seed) {
  for (const auto& piece : pieces) {
    const auto& parameter = model.parameters()[piece.parameter];
    if (parameter.initializer.kind == model::Initializer::Kind::normal) {
      (piece.in_host_memory ? host : device)
          .run(device::op::RandomNormal{.stream = RandomStream(seed, "init " + parameter.name),
                                        .first = piece.begin,
                                        .standard_deviation = parameter.initializer.standard_deviation,
                                        .out = piece.master});
    } else if (parameter.initializer.kind == model::Initializer::Kind::zeros) {
      device.run(device::op::Zero{.destination = piece.master});
    } else {
      fill_with_ones(device, piece.master);
    }
  }
  device.synchronize(device::Stream::compute);
}

}  // namespace llampi::fsdp
