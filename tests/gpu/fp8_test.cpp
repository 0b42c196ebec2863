// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits on GPUs, and what goes before them.
#include "support/fp8_operations.hpp"

#include "gpu/gpu_fixture.hpp"

namespace llampi::test {
namespace {

class GpuFp8 : public GpuTest {};

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
