// SPDX-License-Identifier: Apache-2.0
// Steps as graphs: a step is run action by action, captured when it comes again, and then replayed.
//
// What changes from step to step lies where a graph reads it anew: scalars in device memory, micro-batches in
// host memory that the engine keeps. All else is the same in every step but the number of segments, and of
// those of each class of lengths, for which operations are issued. So all micro-batches of all ranks have the
// same numbers, the largest so far, rounded up (RoundedCounts): the segments that are too many are empty.
// They are the same on all ranks because collectives may be captured and replayed only by all of them
// together. The numbers are the same without graphs, and so are the bits.
//
// A step is issued all the same if somebody observes it, or if a snapshot was taken just before: a graph
// could only wait for the copies as a whole, while of a step that is issued the update alone does.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "fsdp/runtime/executor.hpp"

namespace llampi::fsdp {

class StepGraphs {
 public:
  StepGraphs(device::Device& device, Executor& executor) : device_(device), executor_(executor) {}

  /// The first step of its kind runs without a graph: libraries choose and load kernels, NCCL connects.
  /// False: it was aborted, as Executor::run() says; a step that is replayed is not.
  bool run(const BoundProgram& step, const RunInputs& inputs, const BatchCounts& counts);
  /// The next step of each kind is a first one again: kernels may be others.
  void forget() {
    seen_.clear();
    captured_.clear();
  }
  /// Steps that were replays of a captured one.
  std::int64_t replays() const { return replays_; }
  /// Times that a step was captured.
  std::int64_t captures() const { return captures_; }

 private:
  struct CapturedStep {
    BatchCounts counts;  ///< that operations were issued for
    device::Graph graph;
  };
  device::Graph capture(const BoundProgram& step, const RunInputs& inputs);

  device::Device& device_;
  Executor& executor_;
  std::set<BatchCounts> seen_;          ///< with which a step has run
  std::vector<CapturedStep> captured_;  ///< the last used is the last
  std::int64_t replays_ = 0, captures_ = 0;
};

}  // namespace llampi::fsdp
