// SPDX-License-Identifier: Apache-2.0
// Random weights: the numbers of core/philox.hpp to the bit, from each variant of the kernels and any number of threads.
#include <bit>

#include "device/cpu/cpu_device.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/philox.hpp"
#include "support/device_session.hpp"

namespace llampi::test {
namespace {

constexpr double kDeviation = 0.02;

float expected(const RandomStream& stream, std::uint64_t index) {
  return static_cast<float>(kDeviation * stream.normal(index));
}

TEST(RandomKernels, DrawTheNumbersOfTheStream) {
  const RandomStream stream(7, "init model.layers.0.mlp.up_proj.weight");
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{3}, (std::uint64_t{1} << 32) - 500}) {
      std::vector<float> numbers(1003);
      kernels->normal(1003, {stream.key(), stream.purpose(), first}, kDeviation, numbers.data());
      for (std::uint64_t i = 0; i < 1003; ++i)
        ASSERT_EQ(numbers[i], expected(stream, first + i)) << kernels->name << " " << first + i;
    }
  }
}

TEST(RandomKernels, WriteNothingBehindTheEnd) {
  const RandomStream stream(0, "end");
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (std::size_t n = 0; n < 20; ++n) {
      std::vector<float> numbers(24, -7.0F);
      kernels->normal(static_cast<std::int64_t>(n), {stream.key(), stream.purpose(), 0}, kDeviation,
                      numbers.data());
      for (std::size_t i = 0; i < numbers.size(); ++i)
        ASSERT_EQ(numbers[i], i < n ? expected(stream, i) : -7.0F) << kernels->name << n;
    }
  }
}

TEST(CpuRandom, FillsEveryTypeWithAnyNumberOfThreads) {
  constexpr std::int64_t kCount = 5001, kFirst = 77;
  const RandomStream stream(3, "types");
  for (const int threads : {1, 2, 3}) {
    const auto device = device::make_cpu_device(threads);
    const auto fill = [&](Tensor out) {
      device->run(device::op::RandomNormal{
          .stream = stream, .first = kFirst, .standard_deviation = kDeviation, .out = out});
    };
    std::vector<float> single(kCount);
    std::vector<std::uint16_t> brain(kCount), half(kCount);
    fill({single.data(), DType::float32, 1, kCount});
    fill({brain.data(), DType::bfloat16, 1, kCount});
    fill({half.data(), DType::float16, 1, kCount});
    for (std::size_t i = 0; i < kCount; ++i) {
      const float number = expected(stream, kFirst + i);
      ASSERT_EQ(single[i], number) << i;
      ASSERT_EQ(brain[i], to_bfloat16(number)) << i;
      ASSERT_EQ(half[i], to_float16(number)) << i;
    }
    std::vector<double> wide(8);
    EXPECT_THROW(fill({wide.data(), DType::float64, 1, 8}), Error);
  }
}

TEST(ReferenceRandom, KeepsFloat64) {
  const RandomStream stream(3, "types");
  std::vector<double> numbers(9);
  device::make_reference_device()->run(
      device::op::RandomNormal{.stream = stream,
                               .first = 5,
                               .standard_deviation = kDeviation,
                               .out = {numbers.data(), DType::float64, 1, 9}});
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], kDeviation * stream.normal(5 + i));
}

}  // namespace
}  // namespace llampi::test
