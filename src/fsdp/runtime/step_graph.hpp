// SPDX-License-Identifier: Apache-2.0
// Steps as graphs: a step is run action by action, captured when it comes again, and then replayed.
//
// What changes from step to step lies where a graph reads it anew: scalars in device memory, micro-batches in
// host memory that the engine keeps. All else is the same in every step but the numbers for which operations
// are issued (BatchCounts): documents, those of each class of lengths, and labels in quarters of a micro-batch.
// All micro-batches of all ranks have the same numbers (RoundedCounts), because collectives may be captured and
// replayed only by all ranks together. The numbers are the same without graphs, and so are the bits.
//
// There is room for so many nodes (EngineOptions::graph_nodes). A graph that was not replayed for long gives way to another; while those that
// are kept are in use, steps of another kind are issued. Numbers of documents never fall (RoundedCounts): once they have grown, the
// graphs of smaller ones go at once, since no step is like them again.
//
// A step is issued all the same if somebody observes it, or if a snapshot was taken just before: a graph
// could only wait for the copies as a whole, while of a step that is issued the update alone does.
#pragma once

#include <cstdint>
#include <map>
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
    without_room_.clear();
  }
  GraphCounts counts() const { return {replays_, captures_, nodes(), std::ssize(without_room_)}; }

 private:
  struct CapturedStep {
    BatchCounts counts;  ///< that operations were issued for
    device::Graph graph;
    std::int64_t nodes = 0;    ///< the most of all ranks
    std::int64_t used_at = 0;  ///< the step of its last replay
  };
  /// The graph of these counts, as the last of those that are kept. False: there is no room for it.
  bool capture(const BoundProgram& step, const RunInputs& inputs, const BatchCounts& counts);
  void drop_outgrown(const BatchCounts& counts);
  /// Only if there is enough that is no longer in use does any of it go.
  bool make_room(std::int64_t nodes);
  std::int64_t nodes() const;

  device::Device& device_;
  comm::World& world_;
  Executor& executor_;
  std::int64_t most_nodes_;
  std::set<BatchCounts> seen_;  ///< with which a step has run
  std::map<BatchCounts, std::int64_t>
      without_room_;                    ///< kinds that are issued, with the nodes of their graph
  std::vector<CapturedStep> captured_;  ///< the last used is the last
  std::int64_t steps_ = 0, replays_ = 0, captures_ = 0;
};

}  // namespace llampi::fsdp
