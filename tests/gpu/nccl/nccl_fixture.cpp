// SPDX-License-Identifier: Apache-2.0
#include "gpu/nccl/nccl_fixture.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "llampi/comm/comm.hpp"
#include "llampi/core/float8.hpp"

namespace llampi::test {
namespace {

constexpr double kCanary = 77;

bool is_floating(DType dtype) { return dtype != DType::int32 && dtype != DType::int64; }

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}
template <class T>
T take(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void encode(double value, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::float64:
      return put(to, value);
    case DType::float32:
      return put(to, static_cast<float>(value));
    case DType::bfloat16:
      return put(to, to_bfloat16(static_cast<float>(value)));
    case DType::float16:
      return put(to, to_float16(static_cast<float>(value)));
    case DType::int64:
      return put(to, static_cast<std::int64_t>(value));
    case DType::int32:
      return put(to, static_cast<std::int32_t>(value));
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
      return put(to, to_float8(float8_format(dtype), static_cast<float>(value)));
    case DType::int8_blocks:
      break;  // it travels as words
  }
}

double decode(const std::byte* from, DType dtype) {
  switch (dtype) {
    case DType::float64:
      return take<double>(from);
    case DType::float32:
      return take<float>(from);
    case DType::bfloat16:
      return from_bfloat16(take<std::uint16_t>(from));
    case DType::float16:
      return from_float16(take<std::uint16_t>(from));
    case DType::int64:
      return static_cast<double>(take<std::int64_t>(from));
    case DType::int32:
      return take<std::int32_t>(from);
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
      return from_float8(float8_format(dtype), take<std::uint8_t>(from));
    case DType::int8_blocks:
      break;
  }
  return 0;
}

}  // namespace

Buffer::Buffer(device::Device& device, comm::World& world, DType dtype, std::int64_t elements)
    : device_(device), memory_(world.allocate((elements + 1) * size_of(dtype))) {
  view_ = {memory_.data(), dtype, 1, elements};
  set(std::vector<double>(static_cast<std::size_t>(elements),
                          is_floating(dtype) ? std::numeric_limits<double>::quiet_NaN() : -7));
}

void Buffer::set(const std::vector<double>& values) {
  const auto size = static_cast<std::size_t>(size_of(view_.dtype));
  std::vector<std::byte> bytes((values.size() + 1) * size);
  for (std::size_t i = 0; i < values.size(); ++i) encode(values[i], view_.dtype, &bytes[i * size]);
  encode(kCanary, view_.dtype, &bytes[values.size() * size]);
  device_.upload({memory_.data(), view_.dtype, 1, view_.cols + 1}, bytes.data(), device::Stream::compute);
  device_.synchronize(device::Stream::compute);
}

std::vector<double> Buffer::get(device::Stream stream) const {
  const auto size = static_cast<std::size_t>(size_of(view_.dtype));
  std::vector<std::byte> bytes(static_cast<std::size_t>(view_.cols + 1) * size);
  device_.download(bytes.data(), {memory_.data(), view_.dtype, 1, view_.cols + 1}, stream);
  device_.synchronize(stream);
  std::vector<double> values;
  for (std::int64_t i = 0; i <= view_.cols; ++i)
    values.push_back(decode(&bytes[static_cast<std::size_t>(i) * size], view_.dtype));
  EXPECT_EQ(values.back(), kCanary) << "the element behind a buffer was written";
  values.pop_back();
  return values;
}

}  // namespace llampi::test
