// SPDX-License-Identifier: Apache-2.0
// The 16-bit formats: casts and stochastic rounding, against the scalar functions of core/half.hpp and
// core/philox.hpp. Blocks of 8 bits.
#include <bit>
#include <cmath>
#include <limits>

#include "device/cpu/cpu_device.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/int8_blocks.hpp"
#include "llampi/core/philox.hpp"
#include "support/rounding.hpp"

namespace llampi::test {
namespace {

using Half = std::uint16_t;

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Every 16-bit pattern, in an order that puts neighbours apart; not a whole number of vectors.
std::vector<Half> all_halves() {
  std::vector<Half> values;
  for (std::uint32_t i = 0; i < 65536; ++i) values.push_back(static_cast<Half>(i * 40503));
  values.insert(values.end(), {0x0001, 0x8001, 0x7C01});
  return values;
}

/// Values between which rounding decides, of both formats: each finite value, the middle to the next one and
/// the neighbours of that, up to where it overflows; then random patterns, NaN among them.
std::vector<float> decisive_floats() {
  std::vector<float> values{0.0F, -0.0F, INFINITY, -INFINITY, 65519.996F, 65520.0F, 65536.0F, 3.4e38F};
  const auto add = [&](float v) { values.insert(values.end(), {v, -v}); };
  for (std::uint32_t bits = 0; bits < 0x7F80; ++bits) {
    for (const std::uint32_t lower : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
      add(float_of(bits << 16 | lower));
  }
  for (std::uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const float low = from_float16(static_cast<Half>(bits)), high = from_float16(static_cast<Half>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact: one more bit
    for (const float v : {low, middle, std::nextafter(middle, 0.0F), std::nextafter(middle, high)}) add(v);
  }
  const RandomStream random(kSeed, "floats");
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const std::uint64_t bits = random.bits(i);
    values.insert(values.end(), {float_of(static_cast<std::uint32_t>(bits)),
                                 float_of(static_cast<std::uint32_t>(bits >> 32)),
                                 // of float16's size: exponents 2^-26 to 2^17
                                 float_of(static_cast<std::uint32_t>(bits & 0x807FFFFF) |
                                          static_cast<std::uint32_t>(101 + (bits >> 40) % 44) << 23)});
  }
  for (std::uint32_t i = 0; i < 23; ++i) values.insert(values.end(), {float_of(0x7F800000 | 1U << i)});
  values.insert(values.end(),
                {float_of(0x7FFFFFFF), float_of(0xFFFFFFFF), float_of(1), float_of(0x80000001)});
  return values;
}

/// Equal bits, or both NaN with equal signs: what a NaN carries is not the same everywhere.
void expect_same(float actual, float expected, std::size_t i) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual) && std::signbit(actual) == std::signbit(expected)) << i;
  } else {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(expected)) << i;
  }
}

struct Format {
  const char* name;
  DType dtype;
  void (*device::Kernels::*widen)(std::int64_t, const Half*, float*);
  void (*device::Kernels::*narrow)(std::int64_t, const float*, Half*);
  float (*from)(Half);
  Half (*to)(float);
};
const Format kFormats[] = {{"bfloat16", DType::bfloat16, &device::Kernels::from_bfloat16,
                            &device::Kernels::to_bfloat16, from_bfloat16, to_bfloat16},
                           {"float16", DType::float16, &device::Kernels::from_float16,
                            &device::Kernels::to_float16, from_float16, to_float16}};

TEST(CastKernels, WidenEveryHalfExactly) {
  const std::vector<Half> x = all_halves();
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (const Format& format : kFormats) {
      SCOPED_TRACE(fmt::format("{} {}", kernels->name, format.name));
      std::vector<float> y(x.size());
      (kernels->*format.widen)(static_cast<std::int64_t>(x.size()), x.data(), y.data());
      for (std::size_t i = 0; i < x.size(); ++i) expect_same(y[i], format.from(x[i]), i);
    }
  }
}

TEST(CastKernels, NarrowToTheNearest) {
  const std::vector<float> x = decisive_floats();
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (const Format& format : kFormats) {
      SCOPED_TRACE(fmt::format("{} {}", kernels->name, format.name));
      std::vector<Half> y(x.size());
      (kernels->*format.narrow)(static_cast<std::int64_t>(x.size()), x.data(), y.data());
      for (std::size_t i = 0; i < x.size(); ++i)
        expect_same(format.from(y[i]), format.from(format.to(x[i])), i);
    }
  }
}

// Around the lengths of vectors; what is behind the end is not touched.
TEST(CastKernels, WriteNothingBehindTheEnd) {
  const std::vector<float> x(64, 1.5F);
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (const Format& format : kFormats) {
      for (std::size_t n = 0; n < 40; ++n) {
        std::vector<Half> y(64, 0x1234);
        std::vector<float> z(64, -7.0F);
        (kernels->*format.narrow)(static_cast<std::int64_t>(n), x.data(), y.data());
        (kernels->*format.widen)(static_cast<std::int64_t>(n), y.data(), z.data());
        for (std::size_t i = 0; i < 64; ++i) {
          ASSERT_EQ(y[i], i < n ? format.to(1.5F) : 0x1234) << kernels->name << n;
          ASSERT_EQ(z[i], i < n ? 1.5F : -7.0F) << kernels->name << n;
        }
      }
    }
  }
}

TEST(CpuCast, GoesBothWays) {
  const Values values = normal(3, 5001, "values", 100);
  for (const int threads : {1, 2, 3}) {
    const auto device = device::make_cpu_device(threads);
    Session s(*device, DType::float32);
    const Tensor x = s.upload(values), back = s.output(3, 5001);
    for (const Format& format : kFormats) {
      std::vector<Half> half(values.data.size());
      const Tensor y{half.data(), format.dtype, 3, 5001};
      device->run(device::op::Cast{.source = x, .destination = y});
      device->run(device::op::Cast{.source = y, .destination = back});
      for (std::size_t i = 0; i < half.size(); ++i) {
        ASSERT_EQ(half[i], format.to(x.as<float>()[i])) << i;
        ASSERT_EQ(back.as<float>()[i], format.from(half[i])) << i;
      }
    }
  }
}

TEST(CpuCast, EqualTypesAreCopied) {
  const Values values = normal(3, 501, "values");
  for (const DType dtype : {DType::float32, DType::float64}) {
    const auto device =
        dtype == DType::float32 ? device::make_cpu_device(2) : device::make_reference_device();
    Session s(*device, dtype);
    const Tensor y = s.output(3, 501);
    device->run(device::op::Cast{.source = s.upload(values), .destination = y});
    EXPECT_TRUE(same_bits(s.download(y), values));
  }
  std::vector<Half> x = all_halves(), y(x.size());
  const auto count = static_cast<std::int64_t>(x.size());
  device::make_cpu_device(2)->run(device::op::Cast{.source = {x.data(), DType::float16, 1, count},
                                                   .destination = {y.data(), DType::float16, 1, count}});
  EXPECT_EQ(x, y);
}

TEST(CpuCast, WidensBlocksAsTheReferenceDoes) {
  for (const std::int64_t count : {1, 7, 8, 9, 1003}) {
    const Values values = normal(count, kInt8BlockElements, "values", 100);
    const std::vector<float> narrow(values.data.begin(), values.data.end());
    std::vector<Int8Block> blocks(static_cast<std::size_t>(count));
    to_int8_blocks(narrow.data(), std::ssize(narrow), blocks.data());
    const Tensor source{blocks.data(), DType::int8_blocks, count, kInt8BlockElements};
    const auto reference = device::make_reference_device();
    Session exact(*reference, DType::float64);
    const Tensor expected = exact.output(count, kInt8BlockElements);
    reference->run(device::op::Cast{.source = source, .destination = expected});
    for (const int threads : {1, 2, 3}) {
      const auto device = device::make_cpu_device(threads);
      Session s(*device, DType::float32);
      const Tensor y = s.output(count, kInt8BlockElements);
      device->run(device::op::Cast{.source = source, .destination = y});
      // The product of a float32 and an integer of 8 bits is exact in float64, and rounded once in float32.
      for (std::int64_t i = 0; i < y.elements(); ++i)
        ASSERT_EQ(y.as<float>()[i], static_cast<float>(expected.as<double>()[i])) << i;
    }
  }
}

TEST(CpuCast, RefusesOtherSizesAndTypes) {
  const auto device = device::make_cpu_device(1);
  std::vector<double> memory(8);
  const auto of = [&](DType dtype, std::int64_t cols) { return Tensor{memory.data(), dtype, 1, cols}; };
  EXPECT_THROW(
      device->run(device::op::Cast{.source = of(DType::float32, 8), .destination = of(DType::bfloat16, 7)}),
      Error);
  EXPECT_THROW(
      device->run(device::op::Cast{.source = of(DType::bfloat16, 8), .destination = of(DType::float16, 8)}),
      Error);
  EXPECT_THROW(
      device->run(device::op::Cast{.source = of(DType::float32, 8), .destination = of(DType::float64, 8)}),
      Error);
  EXPECT_THROW(
      device->run(device::op::Cast{.source = of(DType::int32, 8), .destination = of(DType::float32, 8)}),
      Error);
  EXPECT_THROW(device->run(device::op::Cast{.source = of(DType::int8_blocks, 128),
                                            .destination = of(DType::bfloat16, 128)}),
               Error);
  EXPECT_THROW(device->run(device::op::Cast{.source = of(DType::float32, 128),
                                            .destination = of(DType::int8_blocks, 128)}),
               Error);
  EXPECT_THROW(device::make_reference_device()->run(
                   device::op::Cast{.source = of(DType::float32, 8), .destination = of(DType::bfloat16, 8)}),
               Error);
}

std::vector<Half> rounded(const device::Kernels& kernels, const std::vector<float>& x,
                          const device::RoundingKey& key) {
  std::vector<Half> y(x.size());
  kernels.round_bfloat16(static_cast<std::int64_t>(x.size()), x.data(), key, y.data());
  return y;
}

TEST(StochasticRounding, EqualsTheScalarModel) {
  const std::vector<float> decisive = decisive_floats();
  constexpr std::uint64_t kFar = std::uint64_t{1} << 35;  // where e / 8 needs the second word
  for (const device::Kernels* kernels : device::available_kernels()) {
    for (const std::uint64_t first :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{127}, kFar - 205, ~std::uint64_t{0} >> 2}) {
      for (const std::size_t n : {1U, 5U, 16U, 129U, 1024U}) {
        const std::vector<float> x(decisive.end() - static_cast<std::ptrdiff_t>(n), decisive.end());
        const device::RoundingKey key{0x0123456789ABCDEF, 4000000007, 2, first};
        const std::vector<Half> y = rounded(*kernels, x, key);
        for (std::size_t i = 0; i < n; ++i) {
          expect_same(from_bfloat16(y[i]), from_bfloat16(round_bfloat16(x[i], key, first + i)), i);
        }
      }
    }
    const device::RoundingKey key{1, 2, 0, 3};
    const std::vector<Half> y = rounded(*kernels, decisive, key);
    for (std::size_t i = 0; i < decisive.size(); ++i)
      expect_same(from_bfloat16(y[i]), from_bfloat16(round_bfloat16(decisive[i], key, 3 + i)), i);
  }
}

TEST(StochasticRounding, LeavesWhatFits) {
  std::vector<float> x;
  for (const Half half : all_halves()) x.push_back(from_bfloat16(half));
  const std::vector<Half> y = rounded(*device::available_kernels().front(), x, {1, 2, 0, 3});
  for (std::size_t i = 0; i < x.size(); ++i) expect_same(from_bfloat16(y[i]), x[i], i);
}

/// How many of n equal values, a fraction/65536 of the way to the next bfloat16, go up.
std::int64_t ups(std::uint32_t fraction, std::size_t n, const device::RoundingKey& key) {
  const std::vector<float> x(n, float_of(0x3F800000 + fraction));
  std::int64_t result = 0;
  for (const Half half : rounded(*device::available_kernels().front(), x, key)) result += half == 0x3F81;
  return result;
}

// A binomial count: 5 standard deviations of sqrt(n p (1 - p)); a fair generator fails once in 1.7 million
// such comparisons, and the seeds are fixed.
void expect_binomial(std::int64_t count, double n, double p) {
  EXPECT_NEAR(static_cast<double>(count), n * p, 5 * std::sqrt(n * p * (1 - p))) << "p = " << p;
}

TEST(StochasticRounding, HasTheValueAsItsMean) {
  constexpr std::size_t kCount = 1 << 18;
  for (const std::uint32_t fraction : {1U << 6, 0x1000U, 0x5555U, 0x8000U, 0xC001U, 0xFFC0U}) {
    const double p = fraction / 65536.0;
    for (std::uint32_t operand = 0; operand < 3; ++operand)
      expect_binomial(ups(fraction, kCount, {kSeed, 17, operand, 5}), kCount, p);
    std::int64_t over_steps = 0;  // of the same elements
    for (std::uint32_t step = 1; step <= kCount / 128; ++step)
      over_steps += ups(fraction, 128, {kSeed, step, 0, 0});
    expect_binomial(over_steps, kCount, p);
  }
}

// Each part of the key counts: halves of all values then round alike by chance, no more and no less.
TEST(StochasticRounding, KeysAreIndependent) {
  constexpr std::size_t kCount = 1 << 16;
  const std::vector<float> x(kCount, float_of(0x3F808000));
  const device::Kernels& kernels = *device::available_kernels().front();
  const std::vector<Half> base = rounded(kernels, x, {kSeed, 7, 1, 0});
  const device::RoundingKey others[] = {{kSeed + 1, 7, 1, 0}, {kSeed + (std::uint64_t{1} << 32), 7, 1, 0},
                                        {kSeed, 8, 1, 0},     {kSeed, 7, 2, 0},
                                        {kSeed, 7, 1, 1},     {kSeed, 7, 1, kCount}};
  for (const device::RoundingKey& key : others) {
    const std::vector<Half> other = rounded(kernels, x, key);
    std::int64_t equal = 0;
    for (std::size_t i = 0; i < kCount; ++i) equal += base[i] == other[i];
    expect_binomial(equal, kCount, 0.5);
  }
}

}  // namespace
}  // namespace llampi::test
