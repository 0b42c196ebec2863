// SPDX-License-Identifier: Apache-2.0
#include "fsdp/program/schedule.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace llampi::fsdp {
namespace {

class Scheduler {
 public:
  Scheduler(const ProgramSpec& spec, const std::vector<bool>& in_place)
      : spec_(spec),
        in_place_(in_place),
        layers_(static_cast<int>(spec.specs.size())),
        unit_of_(unit_of_parameter(spec.units, spec.parameters.size())) {
    first_trained_ = first_trained_layer();
  }

  Schedule run() {
    for (int m = 0; m < spec_.options.micro_batches; ++m) add_events(m);
    made_.events_per_micro_batch = static_cast<int>(made_.events.size()) / spec_.options.micro_batches;
    for (int m = 0; m < spec_.options.micro_batches; ++m) add_residencies(m);
    std::stable_sort(made_.residencies.begin(), made_.residencies.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    choose_issue_points();
    if (spec_.options.offload.residuals && !spec_.forward_only) {
      for (int m = 0; m < spec_.options.micro_batches; ++m) add_host_stays(m);
    }
    return std::move(made_);
  }

 private:
  /// The backward pass ends with it: nothing before it needs a gradient.
  int first_trained_layer() const {
    for (int s = 0; s < layers_; ++s) {
      const auto& uses = spec_.specs[s].parameters;
      if (std::any_of(uses.begin(), uses.end(), [&](const auto& use) { return trained(use.parameter); }))
        return s;
    }
    require(spec_.forward_only, "a step that trains nothing");
    return layers_;
  }
  bool trained(int parameter) const { return !spec_.units[unit_of_[parameter]].frozen; }

  void add_events(int m) {
    auto& events = made_.events;
    const int forwards = spec_.forward_only ? layers_ : layers_ - 1;
    for (int s = 0; s < forwards; ++s) events.push_back({s, m, Op::forward});
    if (spec_.forward_only) return;
    for (int s = layers_ - 1; s >= first_trained_; --s) {
      const bool recomputes = s < layers_ - 1 && add_recomputation(s, m);
      events.push_back({.layer = s, .micro_batch = m, .op = Op::backward, .recomputes = recomputes});
    }
  }

  Checkpointing checkpointing_of(int s) const {
    const int block = spec_.blocks.empty() ? -1 : spec_.blocks.at(s);
    if (block >= 0) return spec_.options.checkpointing.of(static_cast<std::size_t>(block));
    // Outside of blocks there are recomputed tensors only where all of them are recomputed.
    return spec_.options.checkpointing == Checkpointing::selective ? Checkpointing::selective
                                                                   : Checkpointing::none;
  }

  /// What must run again before the backward of layer `s`. Whether that recomputes more itself.
  bool add_recomputation(int s, int m) {
    const Checkpointing checkpointing = checkpointing_of(s);
    if (checkpointing == Checkpointing::none) return false;
    const bool ends_block =
        spec_.blocks.empty() || spec_.blocks.at(s) < 0 || spec_.blocks.at(s + 1) != spec_.blocks.at(s);
    if (checkpointing == Checkpointing::full) {
      if (!ends_block) return false;
      int first = s;
      while (first > 0 && spec_.blocks.at(first - 1) == spec_.blocks.at(s)) --first;
      for (int r = first; r <= s; ++r) made_.events.push_back({r, m, Op::recompute, r < s});
      return false;
    }
    if (checkpointing == Checkpointing::feed_forward && ends_block) {
      made_.events.push_back({s, m, Op::recompute, false});
      return false;
    }
    const auto& saved = spec_.specs[s].saved;
    return std::any_of(saved.begin(), saved.end(), [](const auto& item) { return item.recomputed; });
  }

  bool reads_unit(const ComputeEvent& event, int unit) const {
    const auto& uses = spec_.specs[event.layer].parameters;
    return std::any_of(uses.begin(), uses.end(), [&](const auto& use) {
      return unit_of_[use.parameter] == unit && reads_parameter(spec_, event, use);
    });
  }

  /// The loss event stands between forward and backward and belongs to both.
  void add_residencies(int m) {
    const int begin = m * made_.events_per_micro_batch, end = begin + made_.events_per_micro_batch;
    const int loss = begin + layers_ - 1;
    for (int u = 0; u < static_cast<int>(spec_.units.size()); ++u) {
      if (spec_.units[u].follows) continue;
      const auto parts = with_followers(spec_.units, u);
      if (std::all_of(parts.begin(), parts.end(), [&](int part) { return in_place_[part]; })) continue;
      std::vector<int> used;
      for (int e = begin; e < end; ++e) {
        if (std::any_of(parts.begin(), parts.end(),
                        [&](int part) { return reads_unit(made_.events[e], part); }))
          used.push_back(e);
      }
      if (used.empty()) continue;
      // the first use in the backward pass proper
      const auto split = std::upper_bound(used.begin(), used.end(), loss);
      const bool spans_loss = split != used.begin() && *(split - 1) == loss;
      if (!spec_.reshard_after_forward || spans_loss || split == used.begin() || split == used.end()) {
        made_.residencies.push_back({u, Pass::forward, used.front(), used.back(), used.front() > loss});
      } else {
        made_.residencies.push_back({u, Pass::forward, used.front(), *(split - 1), false});
        made_.residencies.push_back({u, Pass::backward, *split, used.back(), true});
      }
    }
  }

  /// A unit that another one's use begins inside of is extra: the limit counts those in passing use.
  bool passing(const Residency& r) const {
    const auto next = std::upper_bound(made_.residencies.begin(), made_.residencies.end(), r.first,
                                       [](int first, const Residency& other) { return first < other.first; });
    return next == made_.residencies.end() || next->first > r.last;
  }

  /// With prefetch, a unit is gathered as soon as the limit allows, but not before its own copy of the
  /// micro-batch before is freed. A layer that needs more units at once than the limit has them
  /// nevertheless. Where units stay unsharded until their backward pass, which no limit can shorten, it holds from one
  /// micro-batch to the next.
  void choose_issue_points() {
    IssuePoint earliest;  // gathers are issued in the order of use
    std::map<std::pair<int, Pass>, IssuePoint> freed;
    std::vector<int> ends;  // of the passing uses so far, sorted
    std::vector<int> ends_here,
        ends_before;  // of all uses of this micro-batch so far, and of the one before, sorted
    int micro_batch = 0;
    for (auto& r : made_.residencies) {
      if (const int m = made_.events[r.first].micro_batch; m != micro_batch) {
        micro_batch = m;
        ends_before = std::exchange(ends_here, {});
        std::sort(ends_before.begin(), ends_before.end());
      }
      const auto place = std::ssize(ends_before) - spec_.options.limit_all_gathers + std::ssize(ends_here);
      ends_here.push_back(r.last);
      const Prefetch mode = r.in_backward ? spec_.options.backward_prefetch
                                          : (spec_.options.forward_prefetch ? Prefetch::pre : Prefetch::none);
      const int ahead = static_cast<int>(ends.size()) - spec_.options.limit_all_gathers;
      r.issue = IssuePoint::before(r.first);
      if (mode == Prefetch::pre)
        r.issue = std::min(r.issue, ahead >= 0 ? IssuePoint::after(ends[ahead]) : IssuePoint{});
      if (mode == Prefetch::pre && place >= 0 && place < std::ssize(ends_before))
        r.issue = std::max(r.issue, IssuePoint::after(ends_before[static_cast<std::size_t>(place)]));
      if (mode == Prefetch::post && r.first > 0) r.issue = IssuePoint::after(r.first - 1);
      const auto before = freed.find({r.unit, r.pass});
      if (before != freed.end()) earliest = std::max(earliest, before->second);
      earliest = r.issue = std::max(earliest, r.issue);
      freed[{r.unit, r.pass}] = IssuePoint::after(r.last);
      if (passing(r)) ends.insert(std::upper_bound(ends.begin(), ends.end(), r.last), r.last);
    }
  }

  /// What the backward pass reads of a layer's output, unless it would come back at once. The copies have the
  /// time of two layers in either direction, so that the memory of two or three outputs is enough.
  void add_host_stays(int m) {
    constexpr int kAhead = 2;
    const int begin = m * made_.events_per_micro_batch, end = begin + made_.events_per_micro_batch;
    const int loss = begin + layers_ - 1;
    const auto& events = made_.events;
    for (int s = 0; s + 1 + kAhead < layers_ - 1; ++s) {
      int read = loss;
      while (read < end && !touches_output(events[read], s)) ++read;
      if (read == end || events[read].layer == s) continue;  // not needed, or made again
      // Two layers' backward passes, with what they recompute, however many of them a block has.
      int returns = read, ahead = 0;
      while (returns - 1 > loss && (ahead < kAhead || events[returns - 1].op == Op::recompute)) {
        --returns;
        ahead += events[returns].op == Op::backward ? 1 : 0;
      }
      if (ahead < kAhead) continue;
      made_.host_stays.push_back({s, begin + s, begin + s + 1 + kAhead, returns, read});
    }
  }
  bool touches_output(const ComputeEvent& event, int s) const {
    const bool recomputes = event.op == Op::recompute;
    if (event.layer == s) return recomputes && event.writes_output;
    return event.layer == s + 1 && (recomputes || spec_.specs[s + 1].keeps_input);
  }

  const ProgramSpec& spec_;
  const std::vector<bool>& in_place_;
  int layers_;
  int first_trained_ = 0;
  std::vector<int> unit_of_;
  Schedule made_;
};

}  // namespace

Schedule make_schedule(const ProgramSpec& spec, const std::vector<bool>& in_place) {
  return Scheduler(spec, in_place).run();
}

std::vector<int> with_followers(const std::vector<Unit>& units, int unit) {
  std::vector<int> result = {unit};
  for (int u = unit + 1; u < static_cast<int>(units.size()) && units[u].follows; ++u) result.push_back(u);
  return result;
}

bool reads_parameter(const ProgramSpec& spec, const ComputeEvent& event, const model::LayerSpec::Use& use) {
  const bool backward = event.op == Op::backward;
  const bool is_loss = event.layer + 1 == static_cast<int>(spec.specs.size());
  if (backward && is_loss) return use.forward || use.backward;
  return backward ? use.backward : use.forward;
}

}  // namespace llampi::fsdp
