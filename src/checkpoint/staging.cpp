// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/staging.hpp"

#include <algorithm>

#include "llampi/core/half.hpp"
#include "llampi/core/int8_blocks.hpp"

namespace llampi::checkpoint {
namespace {

constexpr device::Stream kLoadStream = device::Stream::other(0, "load");
constexpr device::Stream kSaveStream = device::Stream::other(1, "save");

static_assert(kTransferElements % kInt8BlockElements == 0);  // so parts begin with blocks
static_assert(kInt8BlockBytes <= kInt8BlockElements * std::int64_t{sizeof(std::uint16_t)});

void decode(DType dtype, const std::uint16_t* bits, std::int64_t elements, float* values) {
  if (dtype != DType::int8_blocks) return widen(dtype, bits, elements, values);
  from_int8_blocks(static_cast<const Int8Block*>(static_cast<const void*>(bits)), elements, values);
}

void encode(DType dtype, const float* values, std::int64_t elements, std::uint16_t* bits) {
  if (dtype != DType::int8_blocks) return narrow(dtype, values, elements, bits);
  to_int8_blocks(values, elements, static_cast<Int8Block*>(static_cast<void*>(bits)));
}

}  // namespace

Staging::Staging(device::Runtime& device, std::int64_t elements)
    : device_(device),
      elements_(elements),
      memory_(
          device.allocate_host(elements * static_cast<std::int64_t>(sizeof(float) + sizeof(std::uint16_t)))) {
  device_.synchronize_all();
}

void Staging::in_parts(const Tensor& tensor,
                       const std::function<void(const Tensor&, std::int64_t)>& work) const {
  require(tensor.dtype != DType::int8_blocks || elements_ % kInt8BlockElements == 0, "parts that cut blocks");
  for (std::int64_t begin = 0; begin < tensor.elements(); begin += elements_)
    work(tensor.slice(begin, std::min(begin + elements_, tensor.elements())), begin);
}

bool Staging::needs_buffer(const Tensor& part) const {
  require(part.elements() <= elements_, "a part that does not fit the buffer");
  return part.dtype != DType::float32 || !device_.is_host_memory(part.data);
}

const float* Staging::fetch(const Tensor& part) {
  if (!needs_buffer(part)) return part.as<float>();
  const bool wide = part.dtype == DType::float32;
  device_.download(wide ? static_cast<void*>(values()) : bits(), part, kSaveStream);
  device_.synchronize(kSaveStream);
  if (!wide) decode(part.dtype, bits(), part.elements(), values());
  return values();
}

float* Staging::room_for(const Tensor& part) const {
  return needs_buffer(part) ? values() : part.as<float>();
}

void Staging::store(const Tensor& part) {
  if (!needs_buffer(part)) return;
  const bool wide = part.dtype == DType::float32;
  if (!wide) encode(part.dtype, values(), part.elements(), bits());
  device_.upload(part, wide ? static_cast<const void*>(values()) : bits(), kLoadStream);
  device_.synchronize(kLoadStream);
}

}  // namespace llampi::checkpoint
