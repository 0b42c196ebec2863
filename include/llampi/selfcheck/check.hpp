// SPDX-License-Identifier: Apache-2.0
// llampi check: whether the devices and the collectives of a job compute what they should.
#pragma once

#include <string>
#include <vector>

#include "llampi/comm/compute.hpp"
#include "llampi/core/log.hpp"

namespace llampi::selfcheck {

/// What one comparison of the check gave, the largest error over the ranks.
struct CheckedTensor {
  std::string where;  ///< "GPU in bfloat16 against the CPU"
  std::string what;   ///< "gradient of lm_head.weight"
  double error = 0;   ///< relative to the norm; not a number if it is none on some rank
  double allowed = 0;
  int rank = 0;  ///< that has the largest

  bool passed() const { return error <= allowed; }
};
struct CheckResult {
  std::vector<std::string> devices;  ///< by rank
  std::vector<CheckedTensor> tensors;
  std::vector<std::string> left_out;  ///< what was not compared here, and why

  bool passed() const;
};

/// Compares what computes here, and moves data between ranks, with what it should give: the CPU with a plain
/// float64 reference, GPUs in every dtype with the CPU, their attention in pieces with the whole where
/// they compute it so, collectives with exact sums. Collective.
/// @param choice threads: 0 as in comm::threads_per_rank()
/// @throws CommonError if a device or a collective fails
CheckResult check(comm::World& world, comm::ComputeChoice choice, const Log& log);

}  // namespace llampi::selfcheck
