// SPDX-License-Identifier: Apache-2.0
// Steps as graphs: a step is run action by action, captured when it comes again, and then replayed.
//
// What changes from step to step lies where a graph reads it anew: scalars in device memory, micro-batches in
// host memory that the engine keeps. All else is the same in every step but the numbers for which operations
// are issued (BatchCounts): segments, those of each class of lengths, and labels in quarters of a micro-batch.
// All micro-batches of all ranks have the same numbers (RoundedCounts), because collectives may be captured and
// replayed only by all ranks together. The numbers are the same without graphs, and so are the bits.
//
// There is room for so many nodes (EngineOptions::graph_nodes). A graph that was not replayed for long gives way to another; while those that
// are kept are in use, steps of another kind are issued. What gave way is issued, too, if it comes again: to instantiate a graph again
// and again would take longer.
//
// A step is issued all the same if somebody observes it, or if a snapshot was taken just before: a graph
// could only wait for the copies as a whole, while of a step that is issued the update alone does.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "fsdp/runtime/executor.hpp"
#include "llampi/fsdp/graph_counts.hpp"

namespace llampi::fsdp {

class StepGraphs {
 public:
  StepGraphs(device::Device& device, comm::World& world, Executor& executor, std::int64_t most_nodes)
      : device_(device), world_(world), executor_(executor), most_nodes_(most_nodes) {}

  /// The first step of its kind runs without a graph: libraries choose and load kernels, NCCL connects.
  /// False: it was aborted, as Executor::run() says; a step that is replayed is not.
  /// Collective, also where no collective is in the step: ranks agree whether all have room for a graph.
  bool run(const BoundProgram& step, const RunInputs& inputs, const BatchCounts& counts);
  /// The next step of each kind is a first one again: kernels may be others.
  void forget() {
    seen_.clear();
    captured_.clear();
    issued_.clear();
  }
  GraphCounts counts() const { return {replays_, captures_, nodes(), without_room_}; }

 private:
  struct CapturedStep {
    BatchCounts counts;  ///< that operations were issued for
    device::Graph graph;
    std::int64_t nodes = 0;    ///< the most of all ranks
    std::int64_t used_at = 0;  ///< replays before the last one of this graph
  };
  /// The graph of these counts, as the last of those that are kept. False: there is no room for it.
  bool capture(const BoundProgram& step, const RunInputs& inputs, const BatchCounts& counts);
  bool make_room(std::int64_t nodes);
  std::int64_t nodes() const;

  device::Device& device_;
  comm::World& world_;
  Executor& executor_;
  std::int64_t most_nodes_;
  std::set<BatchCounts> seen_;          ///< with which a step has run
  std::set<BatchCounts> issued_;        ///< with which steps are not captured, or no more
  std::vector<CapturedStep> captured_;  ///< the last used is the last
  std::int64_t replays_ = 0, captures_ = 0, without_room_ = 0;
};

}  // namespace llampi::fsdp
