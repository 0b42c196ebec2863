// SPDX-License-Identifier: Apache-2.0
#include "fsdp/runtime/step_graph.hpp"

#include <algorithm>
#include <utility>

#include "llampi/comm/exchange.hpp"

namespace llampi::fsdp {
namespace {

constexpr std::int64_t kUnusedReplays = 100;  // of others, after which a graph is no longer in use
constexpr const char* kReplay = "replay of the captured step";

/// Ends a capture that an exception breaks off.
class Capturing {
 public:
  explicit Capturing(device::Device& device) : device_(device) { device.begin_capture(); }
  ~Capturing() {
    if (!ended_) device_.drop_capture();
  }
  Capturing(const Capturing&) = delete;
  Capturing& operator=(const Capturing&) = delete;
  device::Graph end() {
    device::Graph graph = device_.end_capture();
    ended_ = true;
    return graph;
  }

 private:
  device::Device& device_;
  bool ended_ = false;
};

}  // namespace

bool StepGraphs::run(const BoundProgram& step, const RunInputs& inputs, const BatchCounts& counts) {
  if (seen_.insert(counts).second || issued_.contains(counts)) return executor_.run(step, inputs);
  const auto known = std::find_if(captured_.begin(), captured_.end(),
                                  [&](const auto& captured) { return captured.counts == counts; });
  if (known != captured_.end()) {
    known->used_at = replays_;
    std::rotate(known, known + 1, captured_.end());
  } else if (!capture(step, inputs, counts)) {
    issued_.insert(counts);
    ++without_room_;
    return executor_.run(step, inputs);
  }
  const device::Range range(device_, kReplay);
  executor_.record().issue({kReplay});
  executor_.record().act("submitting it");  // to most devices at once
  device_.replay(captured_.back().graph);
  ++replays_;
  return true;
}

bool StepGraphs::capture(const BoundProgram& step, const RunInputs& inputs, const BatchCounts& counts) {
  const device::Range range(device_, "capture of the step");
  Capturing capturing(device_);
  executor_.capture(step, inputs);
  device::Graph graph = capturing.end();
  ++captures_;

  const std::int64_t nodes = comm::max_over_ranks(world_, graph.nodes());
  if (!make_room(nodes)) return false;
  if (comm::on_any_rank(world_, !device_.instantiate(graph))) return false;
  captured_.push_back({counts, std::move(graph), nodes, replays_});
  return true;
}

std::int64_t StepGraphs::nodes() const {
  std::int64_t nodes = 0;
  for (const auto& captured : captured_) nodes += captured.nodes;
  return nodes;
}

/// The same graphs go on all ranks.
bool StepGraphs::make_room(std::int64_t nodes) {
  while (this->nodes() + nodes > most_nodes_) {
    if (captured_.empty() || replays_ - captured_.front().used_at < kUnusedReplays) return false;
    issued_.insert(captured_.front().counts);
    captured_.erase(captured_.begin());
  }
  return true;
}

}  // namespace llampi::fsdp
