// SPDX-License-Identifier: Apache-2.0
// What the ranks tell each other once a step. It travels while the next step runs, so that no rank waits for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "llampi/comm/comm.hpp"
#include "llampi/core/exact_sum.hpp"
#include "llampi/device/length_classes.hpp"
#include "llampi/device/operations.hpp"
#include "train/stopping.hpp"

namespace llampi::train {

/// A time with the rank that took it, as one number: of several the largest has the longest time.
struct RankTime {
  static constexpr int kRankBits = 20;

  std::int64_t number = 0;  ///< 0: none

  RankTime() = default;
  RankTime(double seconds, int rank);
  double seconds() const { return static_cast<double>(number >> kRankBits) * 1e-6; }
  int rank() const;
};

struct StepFacts {
  // summed over the ranks
  std::int64_t valid_labels = 0;  ///< of the batch of the step after this one
  std::int64_t failed_ranks = 0;
  StopVotes stop = {};
  ExactSum losses;                     ///< of the step before this one
  std::int64_t busy_microseconds = 0;  ///< likewise: in which a rank did not wait for others; 0: not known
  device::Fp8Counts fp8;
  // the most of any rank
  std::int64_t step_microseconds = 0;  ///< of the step before this one
  device::BatchCounts counts;          ///< of the batch of the step after this one
  RankTime busiest = {};               ///< of busy_microseconds
  std::int64_t memory_bytes = 0;       ///< in use: RunReport::memory_bytes()
  std::int64_t gpu_process = 0;        ///< bytes, RunReport::gpu_process_bytes()
};

class StepAgreement {
 public:
  explicit StepAgreement(comm::World& world) : world_(world) {}

  /// Collective, but waits for nobody. Then take() is next.
  void start(const StepFacts& own);
  /// Those of all ranks together. Waits until every rank has started.
  StepFacts take();

 private:
  comm::World& world_;
  std::vector<std::int64_t> integers_;
  std::unique_ptr<comm::Work> work_;  ///< last: it writes to the integers
};

}  // namespace llampi::train
