// Steps as graphs: a step is run action by action, captured when it comes again, and then replayed.
//
// What changes from step to step lies where a graph reads it anew: scalars in device memory, micro-batches in
// host memory that the engine keeps. All else is the same in every step but the number of segments, for which
// operations are issued. So all micro-batches of all ranks have one number, the largest, rounded up: the
// segments that are too many are empty. It is the same on all ranks because collectives may be captured and
// replayed only by all of them together. The number is the same without graphs, and so are the bits.
//
// A step is issued all the same if somebody observes it, or if a snapshot was taken just before: a graph
// could only wait for the copies as a whole, while of a step that is issued the update alone does.
#include <algorithm>
#include <bit>

#include "llampi/fsdp/engine.hpp"

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

/// A power of two, so that few numbers occur; but sequences without a border inside keep their own number,
/// for which there are faster kernels.
std::int64_t rounded_segments(std::int64_t segments, model::BatchShape batch) {
  if (segments * batch.seq_len == batch.tokens()) return segments;
  return std::min<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(segments)), batch.tokens());
}

}  // namespace

/// Where the device reads micro-batches as `segments` segments: for a device that wants them in memory of its
/// own kind a copy, with empty segments behind the real ones.
std::vector<Engine::Input> Engine::place_inputs(const MemoryPlan& plan,
                                                std::span<const device::HostBatch> micro_batches,
                                                std::int64_t segments) {
  std::vector<Input> inputs;
  for (const auto& batch : micro_batches) {
    const auto values = batch.values();
    if (!device_.stages_inputs()) {
      inputs.push_back({values, batch.segments, batch.past});
      continue;
    }
    const auto m = static_cast<int>(inputs.size());
    const Tensor place =
        view(plan, DType::int32, 1, static_cast<std::int64_t>(values.size()), Role::host_inputs, m);
    auto* const kept = place.as<std::int32_t>();
    std::copy(values.begin(), values.end(), kept);
    const std::int64_t tokens = batch.token_count();
    std::fill(kept + 3 * tokens + batch.segments + 1, kept + 3 * tokens + segments + 1,
              static_cast<std::int32_t>(tokens));
    inputs.push_back({{kept, values.size()}, segments, batch.past});
  }
  return inputs;
}

void Engine::run_step(std::span<const device::HostBatch> micro_batches) {
  if (!device_.stages_inputs()) return run(step_, place_inputs(*step_.plan, micro_batches, 0), -1);
  std::int64_t of_all[] = {0, observer_ || update_waits_for_snapshot_ ? 1 : 0};
  for (const auto& batch : micro_batches) of_all[0] = std::max(of_all[0], batch.segments);
  {
    const health::FlightScope scope(*record_, {"agreement on the shape of the step"});
    world_.max(std::span(of_all));
  }
  const auto [most_segments, must_be_issued] = of_all;
  const std::int64_t segments = rounded_segments(most_segments, options_.batch);
  const auto inputs = place_inputs(*step_.plan, micro_batches, segments);
  if (options_.graph && device_.can_capture() && !step_.on_host && must_be_issued == 0) {
    replay(inputs, segments);
  } else {
    run(step_, inputs, -1);
  }
}

/// The first step of its kind runs without a graph: libraries choose and load kernels, NCCL connects.
void Engine::replay(std::span<const Input> inputs, std::int64_t segments) {
  if (seen_.insert(segments).second) return run(step_, inputs, -1);
  refresh_shards();
  const auto known = std::find_if(captured_.begin(), captured_.end(),
                                  [&](const auto& step) { return step.segments == segments; });
  if (known != captured_.end()) {
    std::rotate(known, known + 1, captured_.end());
  } else {
    if (captured_.size() == kMostGraphs) captured_.erase(captured_.begin());
    captured_.push_back({segments, capture(inputs)});
  }
  const device::Range range(device_, kReplay);
  record_->issue({kReplay});
  device_.replay(captured_.back().graph);
  ++replays_;
}

device::Graph Engine::capture(std::span<const Input> inputs) {
  const device::Range range(device_, "capture of the step");
  Capturing capturing(device_);
  issue_all(step_, inputs, -1, Issue::capture);
  return capturing.end();
}

}  // namespace llampi::fsdp
