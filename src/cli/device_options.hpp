// SPDX-License-Identifier: Apache-2.0
// Options that several commands have: what computes.
#pragma once

#include "cli/option.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/comm/threads.hpp"

namespace llampi::cli {

inline constexpr Range kThreads{.low = 0, .high = comm::kMostThreads};

inline Option device_option(comm::DeviceOptions& compute) {
  return {"device", one_of(compute.device),
          "device to compute on. auto: GPUs if every rank can have one, otherwise CPUs"};
}

inline Option threads_option(int& threads) {
  return {"threads",
          &threads,
          "threads per rank. 0: OMP_NUM_THREADS if it is set, otherwise cores / ranks of the node",
          {.range = kThreads}};
}

}  // namespace llampi::cli
