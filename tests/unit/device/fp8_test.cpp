// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits on CPUs: casts have the reference's bits, whatever the number of threads; the reference's are those of
// the formats' definition.
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "llampi/core/float8.hpp"
#include "support/fp8_operations.hpp"

namespace llampi::test {
namespace {

/// Of a format that has been scaled: the nearest of all 256 numbers, ties to the even one.
std::uint8_t nearest(DType dtype, double value) {
  const Float8Format format = float8_format(dtype);
  if (std::isnan(value)) return std::signbit(value) ? 0xFF : 0x7F;
  std::uint8_t best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (std::uint8_t bits = 0; bits < 0x7F; ++bits) {
    const auto number = static_cast<double>(from_float8(format, bits));
    if (!std::isfinite(number)) break;
    const double clamped = std::min(std::abs(value), std::ldexp(1.75, format.largest_exponent));
    const double d = std::abs(number - clamped);
    if (d < distance || (d == distance && bits % 2 == 0)) {
      best = bits;
      distance = d;
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

class Fp8 : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<device::Device> device_ = device::make_cpu_device(GetParam());
  std::unique_ptr<device::Device> reference_ = device::make_reference_device();

  void expect_like_reference(const Fp8CastCase& cast) {
    SCOPED_TRACE(cast.name);
    Session session(*device_, DType::float32),
        reference(*reference_, DType::float64, Weights::trained, DType::float32);
    EXPECT_EQ(cast_to_fp8(session, cast), cast_to_fp8(reference, cast));
  }
};
INSTANTIATE_TEST_SUITE_P(Threads, Fp8, ::testing::Values(1, 3));

TEST_P(Fp8, CastsHaveTheBitsOfTheReference) {
  for (const Fp8CastCase& cast : fp8_casts()) expect_like_reference(cast);
}

TEST_P(Fp8, EveryBfloat16HasTheBitsOfTheReference) {
  for (const Fp8CastCase& cast : fp8_casts_of_every_bfloat16()) expect_like_reference(cast);
}

TEST_P(Fp8, ScalesAreThoseOfTheReference) {
  Session session(*device_, DType::float32), reference(*reference_, DType::float64);
  EXPECT_EQ(fp8_scales(session), fp8_scales(reference));
}

TEST_P(Fp8, TransposesBytes) {
  Session session(*device_, DType::float32);
  for (const auto& [rows, cols] : {std::array{16, 16}, {48, 80}, {5, 131}}) {
    std::vector<std::uint8_t> source;
    const std::vector<std::uint8_t> to = transposed_fp8(session, rows, cols, source);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c)
        ASSERT_EQ(to[static_cast<std::size_t>(c * rows + r)], source[static_cast<std::size_t>(r * cols + c)]);
    }
  }
}

// Sums of float32 over k exact products: as in cpu_test.cpp.
TEST_P(Fp8, ProductsAreLikeTheReference) {
  for (const auto& [a, b] : {std::pair{DType::float8_e4m3fn, DType::float8_e4m3fn},
                             {DType::float8_e5m2, DType::float8_e4m3fn},
                             {DType::float8_e4m3fn, DType::float8_e5m2}}) {
    for (const Fp8Added added : kFp8Added) {
      for (const auto& [m, n, k] :
           {std::array{16, 16, 16}, {48, 80, 272}, {272, 48, 80}, {16, 528, 32}, {528, 16, 48}}) {
        const OperationCase op = fp8_product({.m = m, .n = n, .k = k, .a = a, .b = b, .added = added});
        SCOPED_TRACE(op.name);
        Session session(*device_, DType::float32), reference(*reference_, DType::float64);
        expect_all_close(op.forward(session, op.inputs), op.forward(reference, op.inputs),
                         2 * kEpsilon * std::sqrt(static_cast<double>(op.terms)));
      }
    }
  }
}

TEST_P(Fp8, OperationsMeasureWhatTheyWrite) {
  Session session(*device_, DType::float32), reference(*reference_, DType::float64);
  for (const MeasuringCase& operation : measuring_operations()) {
    expect_measures(session, operation);
    expect_measures(reference, operation);
  }
}

// The reference's bits are those of the definition.
TEST(Fp8Reference, CastsToTheNearest) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64);
  for (const Fp8CastCase& cast : fp8_casts_of_every_bfloat16()) {
    SCOPED_TRACE(cast.name);
    const Fp8CastResult result = cast_to_fp8(s, cast);
    const float scale = result.scale.at(0);
    EXPECT_EQ(scale * result.scale.at(1), 1);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(scale) & 0x7FFFFFU, 0U) << "a power of two";
    EXPECT_EQ(result.saturated, 2);
    for (std::size_t i = 0; i < cast.source.data.size(); ++i) {
      const double value = cast.source.data[i];
      ASSERT_EQ(result.values[i], nearest(cast.dtype, value * static_cast<double>(scale))) << value;
      ASSERT_EQ(result.transposed[i % 256 * 256 + i / 256], result.values[i]) << i;
    }
  }
}

// The largest element comes into the upper half of the format's range, unless it is too far away.
TEST(Fp8Reference, ScalesReachTheLargestNumber) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64);
  for (const DType dtype : {DType::float8_e4m3fn, DType::float8_e5m2}) {
    const double largest = std::ldexp(1.75, float8_format(dtype).largest_exponent);
    for (const double size : {1e-12, 1e-3, 1.0, 1e4}) {
      const Values source = rounded(normal(16, 32, "source", size), DType::bfloat16);
      const Fp8CastResult result = cast_to_fp8(s, {.name = {}, .source = source, .dtype = dtype});
      const double scaled = largest_magnitude(source) * static_cast<double>(result.scale.at(0));
      EXPECT_LE(scaled, largest);
      EXPECT_GT(scaled, largest / 2);
      EXPECT_EQ(result.zero_scales, 0);
    }
  }
}

}  // namespace
}  // namespace llampi::test
