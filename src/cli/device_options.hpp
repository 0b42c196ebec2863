// SPDX-License-Identifier: Apache-2.0
// Options that several commands have: what computes.
#pragma once

#include "cli/option.hpp"
#include "llampi/comm/compute.hpp"

namespace llampi::cli {

inline Option device_option(comm::DeviceOptions& compute) {
  return {"device", one_of(compute.device),
          "what computes; auto: GPUs where every rank can have one, else CPUs"};
}

inline Option threads_option(int& threads) {
  return {"threads",
          &threads,
          "threads per rank; 0: OMP_NUM_THREADS or, if that is not set, cores / ranks on the node",
          {.range = kAtLeastZero}};
}

}  // namespace llampi::cli
