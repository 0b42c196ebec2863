// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits on GPUs, and what goes before them.
#include "support/fp8_operations.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "gpu/gpu_fixture.hpp"

namespace llampi::test {
namespace {

class GpuFp8 : public GpuTest {
 protected:
  /// Of run(session, a case), from float32 and from bfloat16, in each order of work.
  template <class Case, class Run>
  static void expect_bits_of_the_reference(const std::vector<Case>& cases, const Run& run) {
    const auto reference_device = device::make_reference_device();
    for (const DType dtype : {DType::bfloat16, DType::float32}) {
      for (const Case& c : cases) {
        SCOPED_TRACE(fmt::format("{}, from {}", c.name, to_string(dtype)));
        Session reference(*reference_device, DType::float64, Weights::trained, dtype);
        const auto expected = run(reference, c);
        for (const WorkOrder& order : compared_orders()) {
          SCOPED_TRACE(order.name);
          order.set();
          Session session(device(), dtype);
          EXPECT_EQ(run(session, c), expected);
        }
      }
    }
  }
  static void expect_products_like_the_reference(const std::vector<Fp8ProductCase>& products);
};

TEST_F(GpuFp8, CastsHaveTheBitsOfTheReference) { expect_bits_of_the_reference(fp8_casts(), cast_to_fp8); }

TEST_F(GpuFp8, EveryBfloat16HasTheBitsOfTheReference) {
  expect_bits_of_the_reference(fp8_casts_of_every_bfloat16(), cast_to_fp8);
}

TEST_F(GpuFp8, TileCastsHaveTheBitsOfTheReference) {
  expect_bits_of_the_reference(fp8_tile_casts(), cast_tiles_to_fp8);
}

TEST_F(GpuFp8, BlockCastsHaveTheBitsOfTheReference) {
  expect_bits_of_the_reference(fp8_block_casts(), cast_blocks_to_fp8);
}

TEST_F(GpuFp8, RefusesMatricesThatHaveNoTilesOrBlocks) {
  Session s(device(), DType::bfloat16);
  const auto refuses_tiles = [&](const Fp8TileCastCase& cast) {
    EXPECT_THROW(cast_tiles_to_fp8(s, cast), Error);
  };
  refuses_tiles({.name = {}, .source = normal(64, 128, "source")});
  refuses_tiles({.name = {}, .source = normal(128, 192, "source")});
  refuses_tiles({.name = {}, .source = normal(128, 128, "source"), .values = false, .transposed = false});
  refuses_tiles({.name = {}, .source = normal(128, 128, "source"), .dtype = DType::bfloat16});
  const Tensor part = s.upload(normal(1, 1000, "part"));
  const Tensor maxima = s.raw(std::vector<std::int32_t>(1).data(), 1, 1, DType::int32);
  for (const std::int64_t first : {-1, 15385})
    EXPECT_THROW(device().run(device::op::Fp8BlockMaximum{.source = part, .first = first, .maxima = maxima}),
                 Error);
  EXPECT_NO_THROW(
      device().run(device::op::Fp8BlockMaximum{.source = part, .first = 15384, .maxima = maxima}));
}

TEST_F(GpuFp8, ScalesAreThoseOfTheReference) {
  const auto reference_device = device::make_reference_device();
  Session reference(*reference_device, DType::float64), session(device(), DType::bfloat16);
  EXPECT_EQ(fp8_scales(session), fp8_scales(reference));
}

TEST_F(GpuFp8, TransposesBytes) {
  for (const WorkOrder& order : compared_orders()) {
    SCOPED_TRACE(order.name);
    order.set();
    for (const auto& [rows, cols] :
         {std::array{16, 16}, {48, 80}, {272, 144}, {5, 131}, {160, 37}, {37, 160}}) {
      Session session(device(), DType::bfloat16);
      std::vector<std::uint8_t> source;
      const std::vector<std::uint8_t> to = transposed_fp8(session, rows, cols, source);
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < cols; ++c)
          ASSERT_EQ(to[static_cast<std::size_t>(c * rows + r)],
                    source[static_cast<std::size_t>(r * cols + c)]);
      }
    }
  }
}

TEST_F(GpuFp8, OperationsMeasureWhatTheyWrite) {
  const std::vector<MeasuringCase> operations = measuring_operations();
  for (const WorkOrder& order : compared_orders()) {
    SCOPED_TRACE(order.name);
    order.set();
    for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
      SCOPED_TRACE(to_string(dtype));
      for (const MeasuringCase& operation : operations) {
        Session session(device(), dtype);
        expect_measures(session, operation);
      }
    }
  }
}

TEST_F(GpuFp8, CastsOfWhatIsComputedHaveTheBitsOfWhatIsWritten) {
  const std::vector<ComputedCastCase> operations = computed_casts();
  for (const WorkOrder& order : compared_orders()) {
    SCOPED_TRACE(order.name);
    order.set();
    for (const DType dtype : {DType::bfloat16, DType::float32}) {
      SCOPED_TRACE(to_string(dtype));
      for (const ComputedCastCase& operation : operations) {
        Session session(device(), dtype);
        expect_same_cast(session, operation);
      }
    }
  }
}

/// Sums of float32 and the rounding of y are as in operations_test.cpp. Hopper's tensor cores cut partial sums to 14 bits,
/// so that each of the sums of 32 terms is off by up to 2^-13 of what it is added to: all of them with fast accumulation,
/// else those of 128 terms, which are then added in float32 (Deepseek-V3, arXiv 2412.19437, 3.3.2).
double tolerance(const Fp8ProductCase& product, DType dtype) {
  const double sums = 2 * kEpsilon * std::sqrt(static_cast<double>(product.k));
  const double rounding = dtype == DType::float32 ? 0 : 2 * unit_roundoff(dtype);
  const auto cuts =
      static_cast<double>(product.fast_accumulation ? product.k : std::min<std::int64_t>(product.k, 128)) /
      32;
  return sums + rounding + (sums_are_float32() ? 0 : std::max(cuts, 1.0) * 0x1p-13);
}

void GpuFp8::expect_products_like_the_reference(const std::vector<Fp8ProductCase>& products) {
  const auto reference_device = device::make_reference_device();
  for (const Fp8ProductCase& product : products) {
    const OperationCase op = fp8_product(product);
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      SCOPED_TRACE(fmt::format("{} into {}", op.name, to_string(dtype)));
      Session reference(*reference_device, DType::float64, Weights::trained, dtype);
      const std::vector<Values> expected = op.forward(reference, op.inputs);
      for (const WorkOrder& order : compared_orders()) {
        SCOPED_TRACE(order.name);
        order.set();
        Session session(device(), dtype);
        expect_all_close(op.forward(session, op.inputs), expected, tolerance(product, dtype));
      }
    }
  }
}

TEST_F(GpuFp8, ProductsAreLikeTheReference) {
  std::vector<Fp8ProductCase> products;
  for (const auto& [m, n, k] : {std::array{16, 16, 16}, {48, 80, 272}, {272, 48, 80}, {144, 400, 32}}) {
    for (const Fp8Added added : kFp8Added) {
      products.push_back({.m = m, .n = n, .k = k, .added = added});
      products.push_back({.m = m, .n = n, .k = k, .added = added, .fast_accumulation = true});
      products.push_back({.m = m, .n = n, .k = k, .a = DType::float8_e5m2, .added = added});
      products.push_back({.m = m, .n = n, .k = k, .b = DType::float8_e5m2, .added = added});
    }
  }
  expect_products_like_the_reference(products);
}

TEST_F(GpuFp8, ProductsWithScalesOfBlocksAreLikeTheReference) {
  if (!has_block_products()) GTEST_SKIP() << "this GPU has none";
  expect_products_like_the_reference(fp8_block_products(128, 256, 384));
  expect_products_like_the_reference(fp8_block_products(128, 128, 640));
}

TEST_F(GpuFp8, RefusesProductsThatTensorCoresDoNotHave) {
  const auto refuses = [](const Fp8ProductCase& product) {
    const OperationCase op = fp8_product(product);
    Session session(device(), DType::bfloat16);
    EXPECT_THROW(op.forward(session, op.inputs), Error) << op.name;
  };
  refuses({.m = 16, .n = 16, .k = 24});
  refuses({.m = 8, .n = 16, .k = 16});
  refuses({.m = 16, .n = 20, .k = 16});
  refuses({.m = 16, .n = 16, .k = 16, .a = DType::float8_e5m2, .b = DType::float8_e5m2});
  using enum device::Fp8Scaling;
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

}  // namespace
}  // namespace llampi::test
