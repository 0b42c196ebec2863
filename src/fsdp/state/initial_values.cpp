// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fsdp/state/views.hpp"
#include "llampi/core/elements.hpp"
#include "llampi/core/int8_blocks.hpp"
#include "llampi/core/philox.hpp"

namespace llampi::fsdp {
namespace {

/// Of element i of the target: value(i), as float32 has it.
template <class Value>
void fill_from_host(device::Device& device, Tensor target, const Value& value) {
  with_elements(target.dtype, [&](auto element, auto narrow, auto) {
    std::vector<decltype(element)> values;
    values.reserve(static_cast<std::size_t>(target.elements()));
    for (std::int64_t i = 0; i < target.elements(); ++i) values.push_back(narrow(value(i)));
    device.upload(target, values.data(), device::Stream::compute);
    device.synchronize(device::Stream::compute);
  });
}

/// What a base in 8 bits is until it is loaded, as in a rehearsal: kPeriod numbers again and again, since the host would take
/// minutes to draw billions. The same elements for every number of shards.
class RepeatedNormals {
 public:
  RepeatedNormals(device::Device& device, device::Device& host, std::uint64_t seed)
      : device_(device), host_(host), stream_(seed, "init base in 8 bits") {}

  void fill(const StatePiece& piece, double standard_deviation) {
    draw(standard_deviation);
    for (std::int64_t begin = 0, end = 0; begin < piece.master.elements(); begin = end) {
      const std::int64_t first = (piece.begin + begin) % kPeriod;
      end = std::min(begin + kPeriod - first, piece.master.elements());
      device_.upload(piece.master.slice(begin, end), blocks_.data() + first / kInt8BlockElements,
                     device::Stream::compute);
    }
    device_.synchronize(device::Stream::compute);
  }

 private:
  static constexpr std::int64_t kPeriod = std::int64_t{1} << 20;

  void draw(double standard_deviation) {
    if (!blocks_.empty() && drawn_ == standard_deviation) return;
    drawn_ = standard_deviation;
    std::vector<float> values(static_cast<std::size_t>(kPeriod));
    host_.run(device::op::RandomNormal{.stream = stream_,
                                       .first = 0,
                                       .standard_deviation = standard_deviation,
                                       .out = tensor(values.data(), 1, kPeriod)});
    blocks_.resize(static_cast<std::size_t>(kPeriod / kInt8BlockElements));
    to_int8_blocks(values.data(), kPeriod, blocks_.data());
  }

  device::Device& device_;
  device::Device& host_;
  RandomStream stream_;
  double drawn_ = 0;
  std::vector<Int8Block> blocks_;
};

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
  RepeatedNormals repeated(device, host, seed);
  for (const auto& piece : pieces) {
    const auto& parameter = model.parameters()[piece.parameter];
    const RandomStream stream(seed, "init " + parameter.name);
    switch (parameter.initializer.kind) {
      case model::Initializer::Kind::normal:
        if (piece.master.dtype == DType::int8_blocks) {
          repeated.fill(piece, parameter.initializer.standard_deviation);
          break;
        }
        (piece.in_host_memory ? host : device)
            .run(device::op::RandomNormal{.stream = stream,
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
