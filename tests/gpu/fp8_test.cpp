// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits on GPUs, and what goes before them.
#include "support/fp8_operations.hpp"

#include "gpu/gpu_fixture.hpp"

namespace llampi::test {
namespace {

class GpuFp8 : public GpuTest {
 protected:
  /// From float32 and from bfloat16, in each order of work.
  static void expect_bits_of_the_reference(const std::vector<Fp8CastCase>& casts) {
    const auto reference_device = device::make_reference_device();
    for (const DType dtype : {DType::bfloat16, DType::float32}) {
      for (const Fp8CastCase& cast : casts) {
        SCOPED_TRACE(fmt::format("{}, from {}", cast.name, to_string(dtype)));
        Session reference(*reference_device, DType::float64, Weights::trained, dtype);
        const Fp8CastResult expected = cast_to_fp8(reference, cast);
        for (const WorkOrder& order : work_orders()) {
          SCOPED_TRACE(order.name);
          order.set();
          Session session(device(), dtype);
          EXPECT_EQ(cast_to_fp8(session, cast), expected);
        }
      }
    }
  }
};

TEST_F(GpuFp8, CastsHaveTheBitsOfTheReference) { expect_bits_of_the_reference(fp8_casts()); }

TEST_F(GpuFp8, EveryBfloat16HasTheBitsOfTheReference) {
  expect_bits_of_the_reference(fp8_casts_of_every_bfloat16());
}

TEST_F(GpuFp8, ScalesAreThoseOfTheReference) {
  const auto reference_device = device::make_reference_device();
  Session reference(*reference_device, DType::float64), session(device(), DType::bfloat16);
  EXPECT_EQ(fp8_scales(session), fp8_scales(reference));
}

TEST_F(GpuFp8, TransposesBytes) {
  for (const WorkOrder& order : work_orders()) {
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
  for (const WorkOrder& order : work_orders()) {
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

}  // namespace
}  // namespace llampi::test
