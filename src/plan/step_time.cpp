// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/step_time.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "llampi/comm/workspace.hpp"
#include "llampi/core/error.hpp"
#include "llampi/fsdp/added_work.hpp"
#include "llampi/fsdp/streams.hpp"

namespace llampi::plan {
namespace {

constexpr std::size_t kResources = 4;

/// An action that has started.
class Running {
 public:
  Running(int action, const Phases& phases) : action_(action), phases_(&phases) { enter(0); }

  int action() const { return action_; }
  bool done() const { return phase_ == phases_->size(); }
  /// Whether it has the resource's bandwidth now.
  bool transfers() const { return !done() && latency_ == 0; }
  Resource resource() const { return (*phases_)[phase_].resource; }
  /// Until its next change, at this rate.
  double remaining(double rate) const { return latency_ > 0 ? latency_ : transfer_ / rate; }
  void advance(double seconds, double rate, bool to_its_change) {
    if (latency_ > 0) {
      latency_ = to_its_change ? 0 : latency_ - seconds;
    } else {
      transfer_ = to_its_change ? 0 : transfer_ - seconds * rate;
    }
    if (latency_ == 0 && transfer_ == 0) enter(phase_ + 1);
  }

 private:
  /// Phase `phase`, or the next one that takes any time.
  void enter(std::size_t phase) {
    for (phase_ = phase; !done(); ++phase_) {
      latency_ = (*phases_)[phase_].latency_seconds;
      transfer_ = (*phases_)[phase_].transfer_seconds;
      if (latency_ > 0 || transfer_ > 0) return;
    }
  }

  int action_;
  const Phases* phases_;
  std::size_t phase_ = 0;
  double latency_ = 0, transfer_ = 0;
};

/// The streams of one rank.
class Clock {
 public:
  Clock(const std::vector<fsdp::Action>& actions, const std::vector<Phases>& phases,
        bool shares_communicators)
      : actions_(actions),
        phases_(phases),
        shares_communicators_(shares_communicators),
        done_(actions.size(), false) {
    for (int i = 0; i < static_cast<int>(actions.size()); ++i) queues_[queue_of(i)].push_back(i);
  }

  StepTime run() {
    start_what_can();
    while (!running_.empty()) {
      advance_to_next_change();
      start_what_can();
    }
    require(std::ranges::all_of(done_, [](bool done) { return done; }), "actions wait for each other");
    return {now_, computing_};
  }

 private:
  /// That of its stream. Collectives that share a communicator's resources have one queue.
  std::size_t queue_of(int action) const {
    const device::Stream stream = actions_[static_cast<std::size_t>(action)].stream;
    return (shares_communicators_ && stream == fsdp::kReduceStream ? fsdp::kUnshardStream : stream).index();
  }

  bool ready(int action) const {
    return std::ranges::all_of(actions_[static_cast<std::size_t>(action)].waits,
                               [&](int other) { return done_[static_cast<std::size_t>(other)]; });
  }

  /// Starts the first action of every stream that has nothing to wait for; what takes no time is done at once, which others may wait for.
  void start_what_can() {
    for (bool again = true; again;) {
      again = false;
      for (std::size_t s = 0; s < queues_.size(); ++s) {
        while (!busy_[s] && next_[s] < queues_[s].size() && ready(queues_[s][next_[s]])) {
          const auto action = static_cast<std::size_t>(queues_[s][next_[s]++]);
          Running started(static_cast<int>(action), phases_[action]);
          if (started.done()) {
            done_[action] = again = true;
          } else {
            busy_[s] = true;
            running_.push_back(started);
          }
        }
      }
    }
  }

  bool computes(const Running& running) const {
    const fsdp::Action& action = actions_[static_cast<std::size_t>(running.action())];
    return action.ranks == fsdp::Ranks::self && running.resource() == Resource::device;
  }

  double rate_of(const Running& running, const std::array<int, kResources>& users) const {
    if (!running.transfers() || running.resource() == Resource::own) return 1;
    return 1.0 / users[static_cast<std::size_t>(running.resource())];
  }

  void advance_to_next_change() {
    std::array<int, kResources> users{};
    for (const Running& running : running_)
      users[static_cast<std::size_t>(running.resource())] += running.transfers() ? 1 : 0;
    double step = std::numeric_limits<double>::infinity();
    for (const Running& running : running_) step = std::min(step, running.remaining(rate_of(running, users)));
    now_ += step;
    if (std::ranges::any_of(running_, [&](const Running& running) { return computes(running); }))
      computing_ += step;
    for (Running& running : running_) {
      const double rate = rate_of(running, users);
      running.advance(step, rate, running.remaining(rate) <= step);
      if (!running.done()) continue;
      const auto action = static_cast<std::size_t>(running.action());
      done_[action] = true;
      busy_[queue_of(running.action())] = false;
    }
    std::erase_if(running_, [](const Running& running) { return running.done(); });
  }

  const std::vector<fsdp::Action>& actions_;
  const std::vector<Phases>& phases_;
  bool shares_communicators_;
  std::vector<bool> done_;
  std::array<std::vector<int>, device::kStreams> queues_;
  std::array<std::size_t, device::kStreams> next_{};
  std::array<bool, device::kStreams> busy_{};
  std::vector<Running> running_;
  double now_ = 0, computing_ = 0;
};

/// That of the group whose collectives take the longest: groups may lie differently on nodes.
GroupShape slowest_shape(const std::vector<std::vector<int>>& groups, const Speed& speed) {
  constexpr double kBytes = 1e9;
  GroupShape slowest;
  double most = -1;
  for (const auto& members : groups) {
    const GroupShape shape = shape_of(members, speed.node_of_rank);
    const double time = seconds(all_gather_phases(speed.network, shape, kBytes, speed.route));
    if (time > most) slowest = shape;
    most = std::max(most, time);
  }
  return slowest;
}

}  // namespace

std::vector<Phases> action_phases(const model::Model& model, const fsdp::EngineOptions& options,
                                  const fsdp::DeviceMesh& mesh, const fsdp::CompiledModel& compiled,
                                  const Speed& speed, const std::vector<ActionWork>& work) {
  require(!speed.costs || work.size() == compiled.step.actions.size(), "costs need the work of each action");
  double matrices = 0;
  const auto flops_of_layers = fsdp::flops_of_layers(model, options, compiled);
  for (const auto& of_layer : flops_of_layers) matrices += of_layer.forward;
  const bool by_flops = matrices > 0 && !speed.costs;
  // Attention is divided among the layers.
  const double seconds_of_a_flop =
      by_flops ? fsdp::forward_flops(model, options, compiled) / matrices / speed.flops_per_second : 0;
  const GroupShape shards = slowest_shape(mesh.shards, speed),
                   replicas = slowest_shape(mesh.replicas(), speed);

  const auto phases_of = [&](const fsdp::Action& action) -> Phases {
    const auto bytes = static_cast<double>(action.bytes);
    if (fsdp::is_of_layer(action)) {
      return {{Resource::device, 0, seconds_of_a_flop * fsdp::of_action(action, flops_of_layers)}};
    }
    if (action.op == fsdp::Op::h2d || action.op == fsdp::Op::d2h) {
      if (speed.backend == comm::Backend::mpi) return {};  // CPUs copy by themselves: ActionWork has it
      return {{Resource::own, bytes / speed.host_link_bytes_per_second}};
    }
    if (action.ranks == fsdp::Ranks::self) return {};
    const GroupShape group = action.ranks == fsdp::Ranks::shard_group ? shards : replicas;
    if (action.op == fsdp::Op::unshard || action.op == fsdp::Op::all_gather)
      return all_gather_phases(speed.network, group, bytes, speed.route);
    const bool scatters = action.op == fsdp::Op::reduce || action.op == fsdp::Op::reduce_scatter;
    std::int64_t pieces = 1;
    if (const auto* summed = action.find(fsdp::Slot::input)) {
      const DType dtype = compiled.step[summed->buffer].dtype;
      pieces = (scatters ? comm::reduce_scatter_pieces : comm::all_reduce_pieces)(
          speed.backend, action.bytes / size_of(dtype), group.ranks, dtype, options.reduction);
    }
    if (scatters) return in_pieces(reduce_scatter_phases(speed.network, group, bytes, speed.route), pieces);
    return in_pieces(all_reduce_phases(speed.network, group, bytes, speed.route), pieces);
  };
  std::vector<Phases> all;
  for (std::size_t i = 0; i < compiled.step.actions.size(); ++i) {
    const fsdp::Action& action = compiled.step.actions[i];
    if (!speed.costs) {
      all.push_back(phases_of(action));
      continue;
    }
    Phases phases;
    if (const double seconds = seconds_of(work[i].amounts, *speed.costs); seconds > 0)
      phases.push_back(
          {action.stream == device::Stream::host ? Resource::own : Resource::device, 0, seconds});
    if (!fsdp::is_of_layer(action)) {
      Phases moved = phases_of(action);
      for (Phase& phase : moved) {
        // Messages inside a node are copied by what computes.
        if (speed.backend == comm::Backend::mpi && phase.resource == Resource::in_node)
          phase.resource = Resource::device;
      }
      // Sums of what has come are formed after it.
      phases.insert(work[i].communicates ? phases.begin() : phases.end(), moved.begin(), moved.end());
    }
    all.push_back(std::move(phases));
  }
  return all;
}

StepTime time_of_step(const std::vector<fsdp::Action>& actions, const std::vector<Phases>& phases,
                      bool shares_communicators) {
  require(actions.size() == phases.size(), "time_of_step: phases are not those of the actions");
  return Clock(actions, phases, shares_communicators).run();
}

}  // namespace llampi::plan
