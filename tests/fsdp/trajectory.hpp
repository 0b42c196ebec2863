// Ten training steps of an oracle case on the ranks of the test's world.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "llampi/fsdp/engine.hpp"
#include "support/oracle.hpp"

namespace llampi {

struct TrajectoryOptions {
  Strategy strategy = Strategy::full_shard;
  int accumulation = 1;
  Prefetch backward_prefetch = Prefetch::pre;
  bool forward_prefetch = true;
  int limit = 2;
  bool poison = false;   ///< NaN in all transient memory before every step
  bool float64 = false;  ///< on the reference device
};

struct Trajectory {
  std::vector<double> losses, grad_norms;
  std::map<std::string, std::vector<double>> final_parameters;  ///< whole, on every rank
};

/// Samples are dealt out in order; slots that are left over are empty, so that any number of ranks and
/// micro-batches works.
Trajectory run_trajectory(World& world, const oracle::Fixture& fixture, const TrajectoryOptions& options);

}  // namespace llampi
