// SPDX-License-Identifier: Apache-2.0
#include "fsdp/runtime/executor.hpp"

#include <array>
#include <optional>
#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/leak.hpp"
#include "llampi/fsdp/streams.hpp"

namespace llampi::fsdp {
namespace {

/// What the host does once an error has reached it: it waits for others no longer, and they may wait for it.
constexpr const char* kEndsAfterAnError = "ending after an error";

/// What a device calls while the host waits for it, for as long as this lives.
class Progress {
 public:
  Progress(device::Device& device, std::function<void()> progress) : device_(device) {
    device.set_progress(std::move(progress));
  }
  ~Progress() { device_.set_progress({}); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  device::Device& device_;
};

}  // namespace

/// When a device that runs beside the host does what: points before and after each action, on its stream.
class DeviceTimes {
 public:
  DeviceTimes(device::Device& device, std::size_t actions) : device_(device), points_(actions) {
    zero_ = device.record_timed(device::Stream::compute);
    device.synchronize(device::Stream::compute);
    zero_on_host_ = steady_seconds();
  }
  void begin(int index, device::Stream stream) {
    record(points_[static_cast<std::size_t>(index)][0], stream);
  }
  void end(int index, device::Stream stream) { record(points_[static_cast<std::size_t>(index)][1], stream); }
  /// After the host has waited for all streams.
  void tell(const Observer& observer, const std::vector<Action>& actions) const {
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const auto& [begin, end] = points_[i];
      if (begin.get() == nullptr || end.get() == nullptr) continue;  // the host's, or it was aborted
      const auto index = static_cast<int>(i);
      observer(actions[i], index, Moment::began_on_device, on_host(begin));
      observer(actions[i], index, Moment::ended_on_device, on_host(end));
    }
  }

 private:
  void record(device::Event& event, device::Stream stream) {
    if (!(stream == device::Stream::host)) event = device_.record_timed(stream);
  }
  double on_host(const device::Event& event) const {
    return zero_on_host_ + device_.seconds_between(zero_, event);
  }

  device::Device& device_;
  device::Event zero_;
  double zero_on_host_ = 0;  ///< a few microseconds later
  std::vector<std::array<device::Event, 2>> points_;
};

/// The state of one run.
struct Executor::Running {
  const BoundProgram& bound;
  const RunInputs& inputs;
  Issue how;
  const Observer& observer;
  health::FlightRecord* record;  ///< null: what is captured does not happen
  std::vector<std::unique_ptr<comm::Work>> works =
      std::vector<std::unique_ptr<comm::Work>>(bound.actions.size());
  std::vector<device::Event> events =
      std::vector<device::Event>(bound.actions.size());  ///< where there is no work
  std::vector<std::uint64_t> sequences = std::vector<std::uint64_t>(bound.actions.size());  ///< of works
  std::vector<int> in_flight = {};  ///< works not known to be done
  std::optional<DeviceTimes> times = {};

  const Action& action(int index) const { return bound.program->actions[static_cast<std::size_t>(index)]; }
  bool finished(int index) {
    if (observer) observer(action(index), index, Moment::end, steady_seconds());
    return true;
  }
  /// Collectives of a stream end in order: with this one, those before it have, and so have those that it waited for.
  void finished_up_to(int index, bool known) {
    const device::Stream stream = action(index).stream;
    std::erase_if(in_flight, [&](int other) {
      if (other > index || action(other).stream != stream) return false;
      if (known && record != nullptr) record->complete(sequences[static_cast<std::size_t>(other)]);
      return finished(other);
    });
    for (const int waited : action(index).waits) {
      if (works[static_cast<std::size_t>(waited)]) finished_up_to(waited, known);
    }
  }
  /// What is captured is not under way, and may not be asked.
  void progress() {
    if (how == Issue::capture) return;
    for (std::size_t k = in_flight.size(); k-- > 0;) {
      if (k < in_flight.size() && works[static_cast<std::size_t>(in_flight[k])]->progress())
        finished_up_to(in_flight[k], true);
    }
  }
};

bool Executor::run(const BoundProgram& bound, const RunInputs& inputs) {
  const bool complete = issue_all(bound, inputs, Issue::run);
  wait_for_device(kH2dStream);
  wait_for_device(kD2hStream);
  return complete;
}

void Executor::capture(const BoundProgram& bound, const RunInputs& inputs) {
  issue_all(bound, inputs, Issue::capture);
}

/// Afterwards Stream::compute waits for all collectives.
bool Executor::issue_all(const BoundProgram& bound, const RunInputs& inputs, Issue how) {
  Running running{bound, inputs, how, observer_, how == Issue::run ? record_ : nullptr};
  const Progress progress(device_, [&] {
    running.progress();
    if (how == Issue::run) world_.check();
  });
  if (observer_ && how == Issue::run && device_.runs_beside_host())
    running.times.emplace(device_, bound.actions.size());
  const int count = static_cast<int>(bound.actions.size());
  bool aborted = false;
  try {
    for (int i = 0; i < count && !aborted; ++i) {
      aborted = aborts_before(running.action(i), how);
      if (!aborted) issue(running, i);
    }
    for (int i = 0; i < count; ++i) {
      if (running.works[static_cast<std::size_t>(i)]) wait_for(running, i, device::Stream::compute);
    }
    if (running.times) {
      for (const device::Stream stream : device::kDeviceStreams) wait_for_device(stream);
      running.times->tell(observer_, bound.program->actions);
    }
  } catch (...) {
    // The job is about to end: waiting for collectives that other ranks may never join would hang it.
    for (auto& work : running.works) leak(std::move(work));
    if (running.record != nullptr) running.record->act(kEndsAfterAnError);
    throw;
  }
  return !aborted;
}

/// What a micro-batch leaves behind before the update is overwritten by the next step.
bool Executor::aborts_before(const Action& action, Issue how) const {
  return action.may_abort_before && how == Issue::run && should_abort_ && should_abort_();
}

void Executor::wait_for_device(device::Stream stream) {
  const device::Range range(device_, "wait for the device");
  record_->wait_for_device();
  const Progress progress(device_, [this] { world_.check(); });
  try {
    device_.synchronize(stream);
  } catch (...) {
    record_->act(kEndsAfterAnError);
    throw;
  }
  record_->act("");
}

void Executor::wait_for(Running& running, int index, device::Stream stream) {
  const auto i = static_cast<std::size_t>(index);
  if (const auto& work = running.works[i]) {
    if (running.record != nullptr) running.record->wait(running.sequences[i]);
    work->wait(stream);
    const bool known = running.record != nullptr && work->progress();
    // Where computation waits for it, a collective has ended for whoever observes; where another stream does, it
    // may be long under way yet.
    if (known || stream == device::Stream::compute || stream == device::Stream::host)
      running.finished_up_to(index, known);
  } else {
    // A host that updates waits for its device most of a step.
    if (stream == device::Stream::host && running.record != nullptr) running.record->wait_for_device();
    device_.wait(stream, running.events[i]);
  }
}

void Executor::issue(Running& running, int index) {
  const auto i = static_cast<std::size_t>(index);
  const Action& action = running.action(index);
  const BoundAction& bound = running.bound.actions[i];
  const device::Range range(device_, bound.name.c_str());
  for (const int w : action.waits) wait_for(running, w, action.stream);
  const health::FlightOperation& what = bound.as_noted;
  if (running.record != nullptr) running.record->act(what.operation, what.name, what.micro_batch);
  if (observer_) observer_(action, index, Moment::begin, steady_seconds());
  if (running.times) running.times->begin(index, action.stream);
  arenas_.mark_used(bound.reach);
  Call call{.action = action,
            .tensors = bound.tensors,
            .run = running.inputs,
            .record = running.record,
            .as_noted = what};
  running.works[i] = (*bound.handler)(call);
  running.sequences[i] = call.sequence;
  if (running.times) running.times->end(index, action.stream);
  if (running.works[i]) {
    running.in_flight.push_back(index);
  } else {
    if (bound.awaited) running.events[i] = device_.record(action.stream);
    running.finished(index);
  }
  running.progress();
}

}  // namespace llampi::fsdp
