// SPDX-License-Identifier: Apache-2.0
#include "fsdp/runtime/step_graph.hpp"

#include <algorithm>

namespace llampi::fsdp {
namespace {

constexpr std::size_t kMostGraphs = 4;  // each takes memory of the device
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
  if (seen_.insert(counts).second) return executor_.run(step, inputs);
  const auto known = std::find_if(captured_.begin(), captured_.end(),
                                  [&](const auto& captured) { return captured.counts == counts; });
  if (known != captured_.end()) {
    std::rotate(known, known + 1, captured_.end());
  } else {
    if (captured_.size() == kMostGraphs) captured_.erase(captured_.begin());
    captured_.push_back({counts, capture(step, inputs)});
    ++captures_;
  }
  const device::Range range(device_, kReplay);
  executor_.record().issue({kReplay});
  executor_.record().act("submitting it");  // to most devices at once
  device_.replay(captured_.back().graph);
  ++replays_;
  return true;
}

device::Graph StepGraphs::capture(const BoundProgram& step, const RunInputs& inputs) {
  const device::Range range(device_, "capture of the step");
  Capturing capturing(device_);
  executor_.capture(step, inputs);
  return capturing.end();
}

}  // namespace llampi::fsdp
