#include "llampi/fsdp/schedule.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

namespace llampi::fsdp {
namespace {

/// A compute event: one stage, forward or backward, in the order in which they run.
struct Event {
  int stage;
  int micro_batch;
  Op op;  // forward, recompute, backward
  bool writes_output = true;
};

/// A stretch of events during which a unit is gathered, with the frozen part that follows it.
struct Residency {
  int unit;  // the first one
  Pass pass;
  int first, last;  // events
  bool in_backward;
  int issue = 0;  // 2 * e: before event e; 2 * e + 1: behind it
};

class Compiler {
 public:
  Compiler(const std::vector<model::StageSpec>& specs, const std::vector<Unit>& units,
           const ScheduleOptions& options)
      : specs_(specs), units_(units), options_(options), stages_(static_cast<int>(specs.size())) {
    std::size_t parameters = 0;
    for (const auto& unit : units) {
      for (const auto& p : unit.parameters) parameters = std::max<std::size_t>(parameters, p.parameter + 1U);
    }
    unit_of_ = unit_of_parameter(units, parameters);
    first_trained_ = first_trained_stage();
    for (int m = 0; m < options.micro_batches; ++m) add_events(m);
  }

  std::vector<Action> run() {
    for (int m = 0; m < options_.micro_batches; ++m) add_residencies(m);
    std::stable_sort(residencies_.begin(), residencies_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    choose_issue_points();
    index_residencies();
    for (int e = 0; e < static_cast<int>(events_.size()); ++e) emit_event(e);
    if (!options_.forward_only) emit_update();
    return std::move(actions_);
  }

 private:
  /// The backward pass ends with it: nothing before it needs a gradient.
  int first_trained_stage() const {
    for (int s = 0; s < stages_; ++s) {
      const auto& uses = specs_[s].parameters;
      if (std::any_of(uses.begin(), uses.end(), [&](const auto& use) { return trained(use.parameter); }))
        return s;
    }
    require(options_.forward_only, "a step that trains nothing");
    return stages_;
  }
  bool trained(int parameter) const { return !units_[unit_of_[parameter]].frozen; }

  /// The unit and what follows it.
  std::vector<int> with_followers(int unit) const {
    std::vector<int> result = {unit};
    for (int u = unit + 1; u < static_cast<int>(units_.size()) && units_[u].follows; ++u) result.push_back(u);
    return result;
  }

  /// Micro-batches are alike.
  int events_per_micro_batch() const { return static_cast<int>(events_.size()) / options_.micro_batches; }

  void add_events(int m) {
    const int forwards = options_.forward_only ? stages_ : stages_ - 1;
    for (int s = 0; s < forwards; ++s) events_.push_back({s, m, Op::forward});
    if (options_.forward_only) return;
    for (int s = stages_ - 1; s >= first_trained_; --s) {
      if (s < stages_ - 1) add_recomputation(s, m);
      events_.push_back({s, m, Op::backward});
    }
  }

  /// What must run again before the backward of stage `s`.
  void add_recomputation(int s, int m) {
    if (options_.checkpointing == Checkpointing::selective) {
      const auto& saved = specs_[s].saved;
      const bool cheap = std::any_of(saved.begin(), saved.end(), [](const auto& item) { return item.cheap; });
      if (cheap) events_.push_back({s, m, Op::recompute, false});
    }
    if (options_.checkpointing != Checkpointing::full) return;
    const int block = options_.blocks.at(s);
    if (block < 0 || options_.blocks.at(s + 1) == block) return;  // not the last stage of a block
    int first = s;
    while (first > 0 && options_.blocks.at(first - 1) == block) --first;
    for (int r = first; r <= s; ++r) events_.push_back({r, m, Op::recompute, r < s});
  }

  bool reads(const Event& event, int unit) const {
    const bool backward = event.op == Op::backward;
    const bool fused = backward && event.stage == stages_ - 1;
    for (const auto& use : specs_[event.stage].parameters) {
      const bool read = fused ? use.forward || use.backward : (backward ? use.backward : use.forward);
      if (read && unit_of_[use.parameter] == unit) return true;
    }
    return false;
  }

  bool writes_gradient(const Event& event, int unit) const {
    if (event.op != Op::backward || units_[unit].frozen) return false;
    const auto& uses = specs_[event.stage].parameters;
    return std::any_of(uses.begin(), uses.end(),
                       [&](const auto& use) { return unit_of_[use.parameter] == unit; });
  }

  /// The loss event stands between forward and backward and belongs to both.
  void add_residencies(int m) {
    const int begin = m * events_per_micro_batch(), end = begin + events_per_micro_batch();
    const int loss = begin + stages_ - 1;
    for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
      const bool in_place = units_[u].shards == 1 && !options_.precision.widens() && !options_.offload.params;
      if (in_place || units_[u].follows) continue;
      const auto parts = with_followers(u);
      std::vector<int> used;
      for (int e = begin; e < end; ++e) {
        if (std::any_of(parts.begin(), parts.end(), [&](int part) { return reads(events_[e], part); }))
          used.push_back(e);
      }
      if (used.empty()) continue;
      const auto split =
          std::upper_bound(used.begin(), used.end(), loss);  // first use in the backward pass proper
      const bool spans_loss = split != used.begin() && *(split - 1) == loss;
      if (!options_.reshard_after_forward || spans_loss || split == used.begin() || split == used.end()) {
        residencies_.push_back({u, Pass::forward, used.front(), used.back(), used.front() > loss});
      } else {
        residencies_.push_back({u, Pass::forward, used.front(), *(split - 1), false});
        residencies_.push_back({u, Pass::backward, *split, used.back(), true});
      }
    }
  }

  /// A unit that another one's use begins inside of is extra: the limit counts those in passing use.
  bool passing(const Residency& r) const {
    return std::none_of(residencies_.begin(), residencies_.end(),
                        [&](const auto& other) { return r.first < other.first && other.first <= r.last; });
  }

  /// With prefetch, a unit is gathered as soon as the limit allows, but not before its own copy of the
  /// micro-batch before is given up. A stage that needs more units at once than the limit has them
  /// nevertheless.
  void choose_issue_points() {
    int earliest = 0;  // gathers are issued in the order of use
    std::map<std::pair<int, Pass>, int> given_up;
    std::vector<int> ends;  // of the passing uses so far, sorted
    for (auto& r : residencies_) {
      const Prefetch mode = r.in_backward ? options_.backward_prefetch
                                          : (options_.forward_prefetch ? Prefetch::pre : Prefetch::none);
      const int ahead = static_cast<int>(ends.size()) - options_.limit_all_gathers;
      r.issue = 2 * r.first;
      if (mode == Prefetch::pre) r.issue = std::min(r.issue, ahead >= 0 ? 2 * ends[ahead] + 1 : 0);
      if (mode == Prefetch::post && r.first > 0) r.issue = 2 * (r.first - 1) + 1;
      const auto before = given_up.find({r.unit, r.pass});
      if (before != given_up.end()) earliest = std::max(earliest, before->second);
      earliest = r.issue = std::max(earliest, r.issue);
      given_up[{r.unit, r.pass}] = 2 * r.last + 1;
      if (passing(r)) ends.insert(std::upper_bound(ends.begin(), ends.end(), r.last), r.last);
    }
  }

  void index_residencies() {
    first_at_.resize(events_.size());
    last_at_.resize(events_.size());
    issued_at_.resize(2 * events_.size());
    for (int i = 0; i < static_cast<int>(residencies_.size()); ++i) {
      first_at_[residencies_[i].first].push_back(i);
      last_at_[residencies_[i].last].push_back(i);
      issued_at_[residencies_[i].issue].push_back(i);
    }
    arrivals_.resize(residencies_.size());
    copy_.resize(units_.size(), Pass::forward);
  }

  int push(Action action) {
    const int index = static_cast<int>(actions_.size());
    if (action.stream == device::Stream::compute) last_compute_ = index;
    actions_.push_back(std::move(action));
    return index;
  }

  void emit_event(int e) {
    const Event& event = events_[e];
    if (e % events_per_micro_batch() == 0) {
      copy_in_ = push({.op = Op::copy_in,
                       .stream = device::Stream::copy,
                       .micro_batch = event.micro_batch,
                       .cargo = Cargo::inputs,
                       .bytes = options_.input_bytes});
    }
    emit_unshards(2 * e);
    emit_compute(e);
    for (const int i : last_at_[e]) {
      const auto& r = residencies_[i];
      for (const int unit : with_followers(r.unit))
        push({.op = Op::reshard, .unit = unit, .micro_batch = event.micro_batch, .pass = r.pass});
    }
    emit_unshards(2 * e + 1);
    emit_reductions(e);
  }

  void emit_unshards(int issue) {
    for (const int i : issued_at_[issue]) {
      const auto& r = residencies_[i];
      for (const int unit : with_followers(r.unit))
        arrivals_[i][unit] = emit_unshard(unit, r.pass, events_[r.first].micro_batch);
    }
  }

  /// The action after which the unit's parameters are on the device; -1: they are kept there. The memory of a
  /// gather may have been given up by any action on the compute stream before it in the list.
  int emit_unshard(int unit, Pass pass, int micro_batch) {
    int arrival = -1;
    std::vector<int> waits;
    if (last_compute_ >= 0) waits.push_back(last_compute_);
    if (options_.offload.params) {
      arrival = push({.op = Op::copy_in,
                      .stream = device::Stream::copy,
                      .unit = unit,
                      .micro_batch = micro_batch,
                      .cargo = Cargo::shard,
                      .pass = pass,
                      .waits = waits,
                      .bytes = units_[unit].shard_elements * size_of(options_.precision.param)});
      waits.push_back(arrival);
    }
    if (units_[unit].shards == 1) return arrival;
    const std::int64_t elements = units_[unit].flat_elements();
    return push({.op = Op::unshard,
                 .stream = device::Stream::unshard,
                 .unit = unit,
                 .micro_batch = micro_batch,
                 .pass = pass,
                 .waits = std::move(waits),
                 .elements = elements,
                 .bytes = elements * size_of(options_.precision.param)});
  }

  void emit_compute(int e) {
    const Event& event = events_[e];
    std::vector<int> gathers;
    for (const int i : first_at_[e]) {
      const auto& r = residencies_[i];
      for (const auto& [unit, arrival] : arrivals_[i]) {
        copy_[unit] = r.pass;
        if (arrival >= 0) gathers.push_back(arrival);
        if (!options_.precision.widens()) continue;
        push({.op = Op::widen,
              .unit = unit,
              .micro_batch = event.micro_batch,
              .pass = r.pass,
              .waits = std::exchange(gathers, {}),
              .elements = units_[unit].flat_elements()});
      }
    }
    Action action{.op = event.op,
                  .stage = event.stage,
                  .micro_batch = event.micro_batch,
                  .writes_output = event.writes_output};
    if (e % events_per_micro_batch() == 0) action.waits.push_back(copy_in_);
    action.waits.insert(action.waits.end(), gathers.begin(), gathers.end());
    for (const auto& use : specs_[event.stage].parameters) {
      action.copies.push_back(copy_[unit_of_[use.parameter]]);
      if (event.op == Op::backward)
        action.accumulate.push_back(write_gradient(use.parameter, event, action.waits));
    }
    push(std::move(action));
  }

  /// A unit whose gradient is reduced has a whole gradient that lives from its first write to its reduction;
  /// one that is not is written where it is kept, and micro-batches add up there.
  bool reduced(int unit) const {
    return units_[unit].shards > 1 || options_.replicas > 1 || options_.precision.shortens_gradient();
  }

  device::Accumulate write_gradient(int parameter, const Event& event, std::vector<int>& waits) {
    const int unit = unit_of_[parameter];
    if (units_[unit].frozen) return device::Accumulate::no;
    const bool travels = reduced(unit) && !options_.precision.narrows();  // otherwise its narrow copy travels
    if (travels && live_gradients_.insert(unit).second) wait_for_travelling(unit, waits);
    const bool per_micro_batch = reduced(unit) && !options_.accumulate_unsharded;
    const std::pair<int, int> key{parameter, per_micro_batch ? event.micro_batch : 0};
    return written_.insert(key).second ? device::Accumulate::no : device::Accumulate::yes;
  }

  /// One gradient may still be travelling while the next is computed, unless it is of the same unit; those
  /// before it must have left.
  void wait_for_travelling(int unit, std::vector<int>& waits) {
    if (travelling_.empty()) return;
    const auto kept = actions_[travelling_.back()].unit == unit ? travelling_.end() : travelling_.end() - 1;
    if (kept == travelling_.begin()) return;
    waits.push_back(*(kept - 1));
    travelling_.erase(travelling_.begin(), kept);
  }

  bool last_write_of_micro_batch(int e, int unit) const {
    if (!writes_gradient(events_[e], unit)) return false;
    const int end = (events_[e].micro_batch + 1) * events_per_micro_batch();
    for (int later = e + 1; later < end; ++later) {
      if (writes_gradient(events_[later], unit)) return false;
    }
    return true;
  }

  void emit_reductions(int e) {
    const int m = events_[e].micro_batch;
    const bool last_micro_batch = m + 1 == options_.micro_batches;
    if (options_.accumulate_unsharded && !last_micro_batch) return;
    for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
      if (!reduced(u) || !last_write_of_micro_batch(e, u)) continue;
      const bool adds = m > 0 && !options_.accumulate_unsharded;
      const bool sharded = units_[u].shards > 1;
      live_gradients_.erase(u);
      const std::int64_t elements = units_[u].flat_elements();
      if (options_.precision.narrows()) {
        Action narrow{.op = Op::narrow, .unit = u, .micro_batch = m, .elements = elements};
        wait_for_travelling(u, narrow.waits);
        push(std::move(narrow));
      }
      last_reduction_ = push({.op = sharded ? Op::reduce : Op::replica_reduce,
                              .stream = device::Stream::reduce,
                              .unit = u,
                              .micro_batch = m,
                              .accumulate = {adds ? device::Accumulate::yes : device::Accumulate::no},
                              .waits = {last_compute_},
                              .elements = elements,
                              .bytes = elements * size_of(options_.precision.reduce)});
      travelling_.push_back(last_reduction_);
      if (!sharded || options_.replicas == 1 || !last_micro_batch) continue;
      // Hybrid: the sharded gradient is whole within the group; one all-reduce of the shard joins the groups.
      last_reduction_ =
          push({.op = Op::replica_reduce,
                .stream = device::Stream::reduce,
                .unit = u,
                .micro_batch = m,
                .accumulate = {device::Accumulate::no},
                .elements = units_[u].shard_elements,
                .bytes = units_[u].shard_elements * size_of(options_.precision.gradient_shard)});
    }
  }

  void emit_update() {
    std::vector<int> trained;
    for (int u = 0; u < static_cast<int>(units_.size()); ++u) {
      if (!units_[u].frozen) trained.push_back(u);
    }
    const bool through_device = options_.offload.optimizer && !options_.offload.host_step;
    // The first states travel while the norm is formed.
    for (std::size_t k = 0; through_device && k < std::min<std::size_t>(2, trained.size()); ++k)
      state_in_.push_back(emit_state(Op::copy_in, trained[k], last_compute_));
    Action norm{.op = Op::norm};
    if (last_reduction_ >= 0) norm.waits.push_back(last_reduction_);
    const int normed = push(std::move(norm));
    if (options_.offload.host_step) {
      emit_host_updates(trained, normed);
    } else if (through_device) {
      emit_streamed_updates(trained);
    } else {
      for (const int u : trained) push({.op = Op::update, .unit = u});
    }
  }

  int emit_state(Op op, int unit, int after) {
    return push({.op = op,
                 .stream = op == Op::copy_in ? device::Stream::copy : device::Stream::copy_out,
                 .unit = unit,
                 .cargo = Cargo::state,
                 .waits = {after},
                 .bytes = state_bytes(unit, op)});
  }

  /// Master, moments and, on the way out, the new shard: those that are kept in host memory.
  std::int64_t state_bytes(int unit, Op op) const {
    const auto& precision = options_.precision;
    const auto placement = state_placement(precision, options_.offload);
    std::int64_t element = 2 * size_of(precision.moment);
    if (placement.host_master) element += size_of(placement.own_master ? precision.master : precision.param);
    if (op == Op::copy_out && placement.host_shard && placement.own_master)
      element += size_of(precision.param);
    return units_[unit].shard_elements * element;
  }

  /// Two units are on the device at a time: while one comes in, the one before it is updated and goes out.
  void emit_streamed_updates(const std::vector<int>& trained) {
    for (std::size_t k = 0; k < trained.size(); ++k) {
      const int update = push({.op = Op::update, .unit = trained[k], .waits = {state_in_[k]}});
      const int out = emit_state(Op::copy_out, trained[k], update);
      if (k + 2 < trained.size()) state_in_.push_back(emit_state(Op::copy_in, trained[k + 2], out));
    }
  }

  /// While the host updates one unit, the gradient of the next comes out and the shard of the one before goes
  /// in.
  void emit_host_updates(const std::vector<int>& trained, int normed) {
    const auto gradient_out = [&](std::size_t k, std::vector<int> after) {
      return push({.op = Op::copy_out,
                   .stream = device::Stream::copy_out,
                   .unit = trained[k],
                   .cargo = Cargo::gradient,
                   .waits = std::move(after),
                   .bytes = units_[trained[k]].shard_elements * size_of(options_.precision.gradient_shard)});
    };
    push({.op = Op::copy_out,
          .stream = device::Stream::copy_out,
          .cargo = Cargo::scalars,
          .waits = {normed},
          .bytes = sizeof(device::StepScalars)});
    std::vector<int> outs, ins;
    for (std::size_t k = 0; k < std::min<std::size_t>(2, trained.size()); ++k)
      outs.push_back(gradient_out(k, {normed}));
    for (std::size_t k = 0; k < trained.size(); ++k) {
      Action update{.op = Op::update, .stream = device::Stream::host, .unit = trained[k], .waits = {outs[k]}};
      if (!options_.offload.params && k >= 2) update.waits.push_back(ins[k - 2]);
      const int updated = push(std::move(update));
      if (k + 2 < trained.size()) {
        std::vector<int> after = {updated};
        if (!ins.empty()) after.push_back(ins.back());  // its memory on the host may be that shard's
        outs.push_back(gradient_out(k + 2, std::move(after)));
      }
      if (options_.offload.params) continue;
      ins.push_back(push({.op = Op::copy_in,
                          .stream = device::Stream::copy,
                          .unit = trained[k],
                          .cargo = Cargo::new_shard,
                          .waits = {updated},
                          .bytes = units_[trained[k]].shard_elements * size_of(options_.precision.param)}));
    }
  }

  const std::vector<model::StageSpec>& specs_;
  const std::vector<Unit>& units_;
  const ScheduleOptions& options_;
  int stages_;
  int first_trained_ = 0;
  std::vector<int> unit_of_;
  std::vector<Event> events_;
  std::vector<Residency> residencies_;
  std::vector<std::vector<int>> first_at_, last_at_, issued_at_;  // residencies per event and issue point
  std::vector<Pass> copy_;                                        // per unit: that was gathered last
  std::vector<std::map<int, int>> arrivals_;                      // per residency and unit: see emit_unshard
  std::vector<int> state_in_;                                     // per trained unit
  std::vector<Action> actions_;
  std::set<int> live_gradients_;           // units whose whole gradient is being written
  std::vector<int> travelling_;            // reductions that nothing has waited for yet
  std::set<std::pair<int, int>> written_;  // (parameter, micro-batch)
  int last_compute_ = -1;
  int last_reduction_ = -1;
  int copy_in_ = -1;
};

}  // namespace

const char* to_string(Op op) {
  constexpr std::array kNames = {"copy_in",  "unshard", "widen",   "forward", "recompute",
                                 "backward", "reshard", "narrow",  "reduce",  "replica_reduce",
                                 "norm",     "update",  "copy_out"};
  return kNames.at(static_cast<std::size_t>(op));
}

const char* to_string(Cargo cargo) {
  constexpr std::array kNames = {"none", "inputs", "shard", "new_shard", "state", "gradient", "scalars"};
  return kNames.at(static_cast<std::size_t>(cargo));
}

std::vector<Action> compile(const std::vector<model::StageSpec>& specs, const std::vector<Unit>& units,
                            const ScheduleOptions& options) {
  require(!specs.empty() && options.micro_batches >= 1 && options.limit_all_gathers >= 1, "schedule options");
  return Compiler(specs, units, options).run();
}

std::string name_of(const model::StageSpec& stage) { return stage.module.empty() ? "root" : stage.module; }

std::vector<int> unit_of_parameter(const std::vector<Unit>& units, std::size_t parameters) {
  std::vector<int> result(parameters, -1);
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const auto& p : units[u].parameters) result[p.parameter] = static_cast<int>(u);
  }
  return result;
}

std::string to_string(const Action& action, const std::vector<model::StageSpec>& specs,
                      const std::vector<Unit>& units) {
  std::string text = to_string(action.op);
  if (action.cargo != Cargo::none) text += fmt::format(" {}", to_string(action.cargo));
  if (action.micro_batch >= 0) text += fmt::format(" mb{}", action.micro_batch);
  if (action.stage >= 0) text += fmt::format(" stage {} ({})", action.stage, name_of(specs[action.stage]));
  if (action.unit >= 0) text += fmt::format(" unit {} ({})", action.unit, units[action.unit].name);
  if (action.op == Op::unshard || action.op == Op::reshard)
    text += action.pass == Pass::forward ? " fwd" : " bwd";
  if (!action.waits.empty()) text += fmt::format(" after [{}]", fmt::join(action.waits, ","));
  return text;
}

HappensBefore::HappensBefore(const std::vector<Action>& actions) {
  std::vector<int> last(device::kStreams, -1);  // per stream: its latest action
  for (const auto& action : actions) {
    const int index = static_cast<int>(known_.size());
    const auto stream = static_cast<std::size_t>(action.stream);
    std::vector<int> known(device::kStreams, -1);
    const auto learn = [&](int other) {
      if (other < 0) return;
      for (std::size_t s = 0; s < device::kStreams; ++s) known[s] = std::max(known[s], known_[other][s]);
      auto& own = known[static_cast<std::size_t>(streams_[other])];
      own = std::max(own, other);
    };
    learn(last[stream]);
    for (const int w : action.waits) learn(w);
    known_.push_back(std::move(known));
    streams_.push_back(action.stream);
    last[stream] = index;
  }
}

bool HappensBefore::operator()(int earlier, int later) const {
  return known_[later][static_cast<std::size_t>(streams_[earlier])] >= earlier;
}

}  // namespace llampi::fsdp
