// SPDX-License-Identifier: Apache-2.0
#include "fsdp/runtime/step_graph.hpp"

#include <algorithm>
#include <utility>

#include "llampi/comm/exchange.hpp"

namespace llampi::fsdp {
namespace {

constexpr std::int64_t kUnusedSteps = 100;  // after which a graph is no longer in use
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
  ++steps_;
  drop_outgrown(counts);
  if (seen_.insert(counts).second) return executor_.run(step, inputs);
  const auto known = std::ranges::find(captured_, counts, &CapturedStep::counts);
  if (known != captured_.end()) {
    std::rotate(known, known + 1, captured_.end());
  } else if (!capture(step, inputs, counts)) {
    return executor_.run(step, inputs);
  }
  captured_.back().used_at = steps_;
  const device::Range range(device_, kReplay);
  executor_.record().issue({kReplay});
  executor_.record().act("submitting it");  // to most devices at once
  device_.replay(captured_.back().graph);
  ++replays_;
  return true;
}

bool StepGraphs::capture(const BoundProgram& step, const RunInputs& inputs, const BatchCounts& counts) {
  const auto nodes_before = without_room_.find(counts);
  if (nodes_before != without_room_.end() && !make_room(nodes_before->second)) return false;
  const device::Range range(device_, "capture of the step");
  Capturing capturing(device_);
  executor_.capture(step, inputs);
  device::Graph graph = capturing.end();
  ++captures_;

  const std::int64_t nodes = comm::max_over_ranks(world_, graph.nodes());
  if (!make_room(nodes)) {
    without_room_[counts] = nodes;
    return false;
  }
  if (comm::on_any_rank(world_, !device_.instantiate(graph))) {
    without_room_[counts] = most_nodes_ + 1;  // whatever else goes
    return false;
  }
  without_room_.erase(counts);
  captured_.push_back({counts, std::move(graph), nodes});
  return true;
}

std::int64_t StepGraphs::nodes() const {
  std::int64_t nodes = 0;
  for (const auto& captured : captured_) nodes += captured.nodes;
  return nodes;
}

void StepGraphs::drop_outgrown(const BatchCounts& counts) {
  if (!counts.lengths.counted()) return;
  const auto is_outgrown = [&](const BatchCounts& other) {
    return other.lengths.counted() &&
           (other.documents != counts.documents || other.lengths != counts.lengths);
  };
  std::erase_if(captured_, [&](const auto& captured) { return is_outgrown(captured.counts); });
  std::erase_if(without_room_, [&](const auto& kind) { return is_outgrown(kind.first); });
}

/// The same graphs go on all ranks.
bool StepGraphs::make_room(std::int64_t nodes) {
  std::int64_t in_all = this->nodes() + nodes;
  auto kept = captured_.begin();
  for (; in_all > most_nodes_; ++kept) {
    if (kept == captured_.end() || steps_ - kept->used_at < kUnusedSteps) return false;
    in_all -= kept->nodes;
  }
  captured_.erase(captured_.begin(), kept);
  return true;
}

}  // namespace llampi::fsdp
