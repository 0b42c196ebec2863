// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits on CPUs: casts have the reference's bits, whatever the number of threads; the reference's are those of
// the formats' definition.
#include <algorithm>
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
    if (d > distance) break;
    if (d < distance || bits % 2 == 0) {
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

  /// run(session, a case) on both devices, for each case.
  template <class Case, class Run>
  void expect_like_reference(const std::vector<Case>& cases, const Run& run) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.name);
      Session session(*device_, DType::float32),
          reference(*reference_, DType::float64, Weights::trained, DType::float32);
      EXPECT_EQ(run(session, c), run(reference, c));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Threads, Fp8, ::testing::Values(1, 3));

TEST_P(Fp8, CastsHaveTheBitsOfTheReference) { expect_like_reference(fp8_casts(), cast_to_fp8); }

TEST_P(Fp8, EveryBfloat16HasTheBitsOfTheReference) {
  expect_like_reference(fp8_casts_of_every_bfloat16(), cast_to_fp8);
}

TEST_P(Fp8, TileCastsHaveTheBitsOfTheReference) {
  expect_like_reference(fp8_tile_casts(), cast_tiles_to_fp8);
}

TEST_P(Fp8, BlockCastsHaveTheBitsOfTheReference) {
  expect_like_reference(fp8_block_casts(), cast_blocks_to_fp8);
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

TEST_P(Fp8, ProductsWithScalesOfBlocksAreLikeTheReference) {
  for (const auto& [m, n, k] : {std::array{128, 256, 384}, {256, 128, 640}}) {
    for (const Fp8ProductCase& product : fp8_block_products(m, n, k)) {
      const OperationCase op = fp8_product(product);
      SCOPED_TRACE(op.name);
      Session session(*device_, DType::float32),
          reference(*reference_, DType::float64, Weights::trained, DType::float32);
      expect_all_close(op.forward(session, op.inputs), op.forward(reference, op.inputs),
                       2 * kEpsilon * std::sqrt(static_cast<double>(op.terms)));
    }
  }
}

TEST_P(Fp8, RefusesScalesThatAreNotMultiplied) {
  using enum device::Fp8Scaling;
  const auto refuses = [&](const Fp8ProductCase& product) {
    const OperationCase op = fp8_product(product);
    Session session(*device_, DType::float32);
    EXPECT_THROW(op.forward(session, op.inputs), Error) << op.name;
  };
  Fp8ProductCase product{.m = 128, .n = 128, .k = 128};
  product.a_scaling = product.b_scaling = blocks;
  refuses(product);
  product.a_scaling = tensor;
  refuses(product);
  product.b_scaling = tiles;
  refuses(product);
  product.a_scaling = tiles;
  product.fast_accumulation = true;
  refuses(product);
}

TEST_P(Fp8, OperationsMeasureWhatTheyWrite) {
  Session session(*device_, DType::float32), reference(*reference_, DType::float64);
  for (const MeasuringCase& operation : measuring_operations()) {
    expect_measures(session, operation);
    expect_measures(reference, operation);
  }
}

TEST_P(Fp8, CastsOfWhatIsComputedHaveTheBitsOfWhatIsWritten) {
  Session session(*device_, DType::float32), reference(*reference_, DType::float64);
  for (const ComputedCastCase& operation : computed_casts()) {
    expect_same_cast(session, operation);
    expect_same_cast(reference, operation);
  }
}

// The reference's bits are those of the definition.
TEST(Fp8Reference, CastsToTheNearest) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64);
  for (const Fp8CastCase& cast : fp8_casts_of_every_bfloat16()) {
    SCOPED_TRACE(cast.name);
    const Fp8CastResult result = cast_to_fp8(s, cast);
    const float scale = result.scale.at(1);
    EXPECT_EQ(scale * result.scale.at(0), 1);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(scale) & 0x7FFFFFU, 0U) << "a power of two";
    EXPECT_EQ(result.saturated, 2);
    for (std::size_t i = 0; i < cast.source.data.size(); ++i) {
      const double value = cast.source.data[i];
      ASSERT_EQ(result.values[i], nearest(cast.dtype, value * static_cast<double>(scale))) << value;
      ASSERT_EQ(result.transposed[i % 256 * 256 + i / 256], result.values[i]) << i;
    }
  }
}

/// What float8_scale_exponent() is defined to be: the largest e, up to 60, with which the largest magnitude stays within
/// the format.
int scale_exponent(DType dtype, double largest) {
  if (largest == 0) return 0;
  int e = 60;
  while (std::ldexp(largest, e) > std::ldexp(1.75, float8_format(dtype).largest_exponent)) --e;
  return e;
}

/// The largest finite magnitude of the tile or block of `values` whose first element is [row, col].
double largest_in(const Values& values, std::int64_t row, std::int64_t col, std::int64_t rows,
                  std::int64_t cols) {
  double largest = 0;
  for (std::int64_t r = row; r < row + rows; ++r) {
    for (std::int64_t c = col; c < col + cols; ++c) {
      const double magnitude = std::abs(values.data[static_cast<std::size_t>(r * values.cols + c)]);
      if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
    }
  }
  return largest;
}

Values turned(const Values& values) {
  Values result{values.cols, values.rows, {}};
  for (std::int64_t c = 0; c < values.cols; ++c) {
    for (std::int64_t r = 0; r < values.rows; ++r)
      result.data.push_back(values.data[static_cast<std::size_t>(r * values.cols + c)]);
  }
  return result;
}

std::int64_t infinities_of(const Values& values) {
  return std::ranges::count_if(values.data, [](double x) { return std::isinf(x); });
}

/// Of a matrix that is cast row by row, in tiles along its rows.
void expect_tiles(const Values& source, DType dtype, const std::vector<std::uint8_t>& values,
                  const std::vector<float>& scales) {
  ASSERT_EQ(scales.size(), source.data.size() / 128);
  for (std::int64_t r = 0; r < source.rows; ++r) {
    for (std::int64_t tile = 0; tile < source.cols / 128; ++tile) {
      const int e = scale_exponent(dtype, largest_in(source, r, tile * 128, 1, 128));
      ASSERT_EQ(scales[static_cast<std::size_t>(tile * source.rows + r)], std::ldexp(1.0F, -e)) << r;
      for (std::int64_t c = tile * 128; c < tile * 128 + 128; ++c) {
        const auto at = static_cast<std::size_t>(r * source.cols + c);
        ASSERT_EQ(values[at], nearest(dtype, std::ldexp(source.data[at], e))) << r << ", " << c;
      }
    }
  }
}

TEST(Fp8Reference, CastsTilesToTheNearest) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64, Weights::trained, DType::bfloat16);
  for (const Fp8TileCastCase& cast : fp8_tile_casts()) {
    SCOPED_TRACE(cast.name);
    const Values source = rounded(cast.source, DType::bfloat16);
    const Fp8TileCastResult result = cast_tiles_to_fp8(s, cast);
    if (cast.values) expect_tiles(source, cast.dtype, result.values, result.scales);
    if (cast.transposed)
      expect_tiles(turned(source), cast.dtype, result.transposed, result.transposed_scales);
    const double largest = largest_in(source, 0, 0, source.rows, source.cols);
    EXPECT_EQ(std::bit_cast<float>(result.maximum), static_cast<float>(largest));
    EXPECT_EQ(result.saturated, cast.counts ? infinities_of(source) : 0);
    EXPECT_EQ(result.zero_scales, cast.counts && largest == 0 ? 1 : 0);
  }
}

/// The scales of a weight's blocks: what fills a row of four, or eight, is 1.
void expect_block_scales(const Values& weight, const std::vector<float>& scales) {
  const std::int64_t rows = weight.rows / 128, cols = weight.cols / 128, row = (cols + 3) / 4 * 4;
  ASSERT_EQ(scales.size(), static_cast<std::size_t>(rows * row));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < row; ++c) {
      const int e =
          c < cols ? scale_exponent(DType::float8_e4m3fn, largest_in(weight, r * 128, c * 128, 128, 128)) : 0;
      ASSERT_EQ(scales[static_cast<std::size_t>(r * row + c)], std::ldexp(1.0F, -e)) << r << ", " << c;
    }
  }
}

TEST(Fp8Reference, CastsBlocksToTheNearest) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64, Weights::trained, DType::bfloat16);
  for (const Fp8BlockCase& blocks : fp8_block_casts()) {
    SCOPED_TRACE(blocks.name);
    const Values weight = rounded(blocks.weight, DType::bfloat16);
    const Fp8BlockResult result = cast_blocks_to_fp8(s, blocks);
    expect_block_scales(weight, result.scales);
    expect_block_scales(turned(weight), result.transposed_scales);
    for (std::int64_t r = 0; r < weight.rows; ++r) {
      for (std::int64_t c = 0; c < weight.cols; ++c) {
        const auto at = static_cast<std::size_t>(r * weight.cols + c);
        const auto square = static_cast<std::size_t>(r / 128 * (weight.cols / 128) + c / 128);
        const auto largest = static_cast<double>(std::bit_cast<float>(result.maxima[square]));
        const int e = scale_exponent(DType::float8_e4m3fn, largest);
        ASSERT_EQ(result.values[at], nearest(DType::float8_e4m3fn, std::ldexp(weight.data[at], e)));
        if (r % 128 == 0 && c % 128 == 0) {
          ASSERT_EQ(largest, largest_in(weight, r, c, 128, 128));
        }
      }
    }
    const bool is_zero = largest_in(weight, 0, 0, weight.rows, weight.cols) == 0;
    EXPECT_EQ(result.saturated, blocks.counts ? infinities_of(weight) : 0);
    EXPECT_EQ(result.zero_scales,
              blocks.counts && is_zero ? static_cast<std::int64_t>(blocks.cuts.size()) + 1 : 0);
  }
}

TEST(Fp8Reference, PartsOfWeightsAreCastAsTheWhole) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64, Weights::trained, DType::bfloat16);
  for (const Fp8BlockCase& blocks : fp8_block_casts()) {
    SCOPED_TRACE(blocks.name);
    Fp8BlockResult whole = cast_blocks_to_fp8(s, in_one_part(blocks));
    whole.zero_scales *= static_cast<std::int64_t>(blocks.cuts.size()) + 1;
    EXPECT_EQ(cast_blocks_to_fp8(s, blocks), whole);
  }
}

/// A matrix as it is after it was cast with scales of tiles or blocks and widened again.
Values cast_and_widened(Values values, DType dtype, device::Fp8Scaling scaling) {
  const std::int64_t rows = scaling == device::Fp8Scaling::blocks ? 128 : 1;
  for (std::int64_t row = 0; row < values.rows; row += rows) {
    for (std::int64_t col = 0; col < values.cols; col += 128) {
      const int e = scale_exponent(dtype, largest_in(values, row, col, rows, 128));
      for (std::int64_t i = 0; i < rows * 128; ++i) {
        double& x = values.data[static_cast<std::size_t>((row + i / 128) * values.cols + col + i % 128)];
        const float number = from_float8(float8_format(dtype), nearest(dtype, std::ldexp(x, e)));
        x = std::ldexp(static_cast<double>(number), -e);
      }
    }
  }
  return values;
}

/// a b^T + added
Values multiplied(const Values& a, const Values& b, Values added) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < b.rows; ++c) {
      for (std::int64_t k = 0; k < a.cols; ++k)
        added.data[static_cast<std::size_t>(r * b.rows + c)] +=
            a.data[static_cast<std::size_t>(r * a.cols + k)] *
            b.data[static_cast<std::size_t>(c * a.cols + k)];
    }
  }
  return added;
}

TEST(Fp8Reference, MultipliesWhatWasCastInTilesAndBlocks) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64, Weights::trained, DType::bfloat16);
  for (const Fp8ProductCase& product : fp8_block_products(128, 256, 384)) {
    if (product.added != Fp8Added::residual) continue;
    const OperationCase op = fp8_product(product);
    SCOPED_TRACE(op.name);
    const auto operand = [&](std::size_t i, DType dtype, device::Fp8Scaling scaling) {
      return cast_and_widened(rounded(op.inputs[i], DType::bfloat16), dtype, scaling);
    };
    const Values added = rounded(normal(product.m, product.n, "added"), DType::bfloat16);
    expect_all_close(op.forward(s, op.inputs),
                     {multiplied(operand(0, product.a, product.a_scaling),
                                 operand(1, product.b, product.b_scaling), added)},
                     1e-14);
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
      const double scaled = largest_magnitude(source) * static_cast<double>(result.scale.at(1));
      EXPECT_LE(scaled, largest);
      EXPECT_GT(scaled, largest / 2);
      EXPECT_EQ(result.zero_scales, 0);
    }
  }
}

}  // namespace
}  // namespace llampi::test
