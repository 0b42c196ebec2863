// SPDX-License-Identifier: Apache-2.0
// What a trajectory is compared with.
#pragma once

#include <string>

#include "support/trajectory.hpp"

namespace llampi::test {

struct Tolerance {
  double loss, norm;       ///< of any step, relative
  double parameter_norm;   ///< of a final parameter, relative
  double parameter_probe;  ///< of a final parameter's product with the probe, relative to its norm
};
/// float32: PyTorch's own float32 run deviates by up to 2.2e-7 in losses, 1.1e-6 in gradient norms and 4.4e-6
/// in `dot` over seven orders of the samples (tests/oracle/README.md); other kernels and ranks only sum in
/// other orders.
inline constexpr Tolerance kFloat32Tolerance = {1e-6, 1e-5, 1e-6, 1e-5};
/// Products in 8 bits, where numbers fall to the other side of a border between two of float8: PyTorch's float32 runs are up
/// to 1.6e-3, 1.1e-2, 2.1e-4 and 1.7e-2 away. The scale of another block would be ten times farther.
inline constexpr Tolerance kFp8OtherCasts = {3e-3, 3e-2, 5e-4, 5e-2};
/// bfloat16 parameters, float32 arithmetic: up to four parameters that fall to the other side of a rounding
/// boundary, as measured with PyTorch (90th percentile, tests/oracle/README.md). To round nothing at all
/// would be ten times farther away.
inline constexpr Tolerance kBfloat16Parameters = {6e-6, 8e-5, 5e-6, 4e-5};

void expect_oracle(const Trajectory& t, const oracle::Fixture& fixture, const Tolerance& tolerance);
void expect_near(const Trajectory& t, const Trajectory& expected, const Tolerance& tolerance);
bool same_bits(const Trajectory& a, const Trajectory& b);
void expect_same_bits(const Trajectory& a, const Trajectory& b, const std::string& what);

}  // namespace llampi::test
