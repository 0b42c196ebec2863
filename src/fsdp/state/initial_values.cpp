// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fsdp/state/views.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/int8_blocks.hpp"
#include "llampi/core/philox.hpp"

namespace llampi::fsdp {
namespace {

/// Of element i of the target: value(i), as float32 has it.
template <class Value>
void fill_from_host(device::Device& device, Tensor target, const Value& value) {
  const auto fill = [&](auto to_element) {
    std::vector<decltype(to_element(0.0F))> values;
    values.reserve(static_cast<std::size_t>(target.elements()));
    for (std::int64_t i = 0; i < target.elements(); ++i) values.push_back(to_element(value(i)));
    device.upload(target, values.data(), device::Stream::compute);
    device.synchronize(device::Stream::compute);
  };
  switch (target.dtype) {
    case DType::float64:
      return fill([](float x) { return static_cast<double>(x); });
    case DType::float32:
      return fill([](float x) { return x; });
    case DType::bfloat16:
      return fill(to_bfloat16);
    case DType::float16:
      return fill(to_float16);
    default:
      throw Error(fmt::format("internal error: parameters in {}", to_string(target.dtype)));
  }
}

void fill_normal(device::Device& device, device::Device& host, const StatePiece& piece,
                 const device::op::RandomNormal& of) {
  if (piece.master.dtype != DType::int8_blocks) return (piece.in_host_memory ? host : device).run(of);
  // Drawn by the host, and cast to blocks.
  constexpr std::int64_t kPart = std::int64_t{1} << 20;
  const std::int64_t room = std::min(kPart, piece.master.elements());
  std::vector<float> values(static_cast<std::size_t>(room));
  std::vector<Int8Block> blocks(static_cast<std::size_t>(room / kInt8BlockElements));
  for (std::int64_t begin = 0; begin < piece.master.elements(); begin += kPart) {
    const Tensor part = piece.master.slice(begin, std::min(begin + kPart, piece.master.elements()));
    host.run(device::op::RandomNormal{.stream = of.stream,
                                      .first = of.first + begin,
                                      .standard_deviation = of.standard_deviation,
                                      .out = tensor(values.data(), 1, part.elements())});
    to_int8_blocks(values.data(), part.elements(), blocks.data());
    device.upload(part, blocks.data(), device::Stream::compute);
    device.synchronize(device::Stream::compute);
  }
}

/// In [-bound, bound): 24 bits of the stream for each logical element.
void fill_uniform(device::Device& device, const StatePiece& piece, double bound, const RandomStream& stream) {
  fill_from_host(device, piece.master, [&](std::int64_t i) {
    const std::uint64_t bits = stream.bits(static_cast<std::uint64_t>(piece.begin + i)) >> 40;
    return static_cast<float>(bound * (static_cast<double>(bits) * 0x1p-23 - 1));
  });
}

}  // namespace

void fill_with_initial_values(const model::Model& model, device::Device& device, device::Device& host,
                              const std::vector<StatePiece>& pieces, std::uint64_t seed) {
  for (const auto& piece : pieces) {
    const auto& parameter = model.parameters()[piece.parameter];
    const RandomStream stream(seed, "init " + parameter.name);
    switch (parameter.initializer.kind) {
      case model::Initializer::Kind::normal:
        fill_normal(device, host, piece,
                    {.stream = stream,
                     .first = piece.begin,
                     .standard_deviation = parameter.initializer.standard_deviation,
                     .out = piece.master});
        break;
      case model::Initializer::Kind::ones:
        fill_from_host(device, piece.master, [](std::int64_t) { return 1.0F; });
        break;
      case model::Initializer::Kind::zeros:
        fill_from_host(device, piece.master, [](std::int64_t) { return 0.0F; });
        break;
      case model::Initializer::Kind::uniform:
        fill_uniform(device, piece, parameter.initializer.bound, stream);
        break;
    }
  }
  device.synchronize(device::Stream::compute);
}

}  // namespace llampi::fsdp
