// SPDX-License-Identifier: Apache-2.0
#include "fsdp/program/schedule.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "llampi/core/integers.hpp"

namespace llampi::fsdp {
namespace {

/// When there is room for one more unsharded unit. A layer that needs more units at once than the limit has them nevertheless.
/// Where units stay unsharded until their backward pass, which no limit can shorten, it holds from one micro-batch to the next.
class GatherLimit {
 public:
  explicit GatherLimit(int most) : most_(most) {}

  void begin_micro_batch() {
    ends_before_ = std::exchange(ends_here_, {});
    std::ranges::sort(ends_before_);
  }
  /// For the next use.
  IssuePoint room() const {
    IssuePoint room;
    const auto passing = std::ssize(passing_ends_) - most_;
    if (passing >= 0) room = IssuePoint::after(passing_ends_[static_cast<std::size_t>(passing)]);
    const auto before = std::ssize(ends_before_) - most_ + std::ssize(ends_here_);
    if (before >= 0 && before < std::ssize(ends_before_))
      room = std::max(room, IssuePoint::after(ends_before_[static_cast<std::size_t>(before)]));
    return room;
  }
  /// @param end the use's last event @param is_passing whether the limit counts it
  void add(int end, bool is_passing) {
    ends_here_.push_back(end);
    if (is_passing) passing_ends_.insert(std::ranges::upper_bound(passing_ends_, end), end);
  }

 private:
  int most_;
  std::vector<int> passing_ends_;  // of the counted uses so far, sorted
  std::vector<int> ends_here_;     // of all uses of this micro-batch so far
  std::vector<int> ends_before_;   // of the one before, sorted
};

class Scheduler {
 public:
  Scheduler(const ProgramSpec& spec, const std::vector<bool>& in_place)
      : spec_(spec),
        in_place_(in_place),
        layers_(static_cast<int>(spec.specs.size())),
        unit_of_(unit_of_parameter(spec.units, spec.parameters.size())) {
    first_trained_ = first_trained_layer();
    const int blocks = spec.blocks.empty() ? 0 : 1 + *std::ranges::max_element(spec.blocks);
    checkpointing_ = spec.options.checkpointing.of_blocks(static_cast<std::size_t>(blocks));
  }

  Schedule run() {
    for (int m = 0; m < spec_.options.micro_batches; ++m) add_events(m);
    made_.events_per_micro_batch = static_cast<int>(made_.events.size()) / spec_.options.micro_batches;
    for (int m = 0; m < spec_.options.micro_batches; ++m) add_residencies(m);
    std::stable_sort(made_.residencies.begin(), made_.residencies.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    choose_issue_points();
    for (int m = 0; m < spec_.options.micro_batches && !spec_.forward_only; ++m) add_host_stays(m);
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
    if (block >= 0) return checkpointing_[static_cast<std::size_t>(block)];
    // Outside of blocks there are recomputed tensors only where all of them are recomputed.
    return spec_.options.checkpointing == Checkpointing::selective ? Checkpointing::selective
                                                                   : Checkpointing::none;
  }

  bool ends_block(int s) const {
    return spec_.blocks.empty() || spec_.blocks.at(s) < 0 || spec_.blocks.at(s + 1) != spec_.blocks.at(s);
  }

  /// What must run again before the backward of layer `s`. Whether that recomputes more itself.
  bool add_recomputation(int s, int m) {
    const Checkpointing checkpointing = checkpointing_of(s);
    if (checkpointing == Checkpointing::none) return false;
    if (checkpointing == Checkpointing::full) {
      if (!ends_block(s)) return false;
      int first = s;
      while (first > 0 && spec_.blocks.at(first - 1) == spec_.blocks.at(s)) --first;
      for (int r = first; r <= s; ++r) made_.events.push_back({r, m, Op::recompute, r < s});
      return false;
    }
    if (checkpointing == Checkpointing::feed_forward && ends_block(s)) {
      made_.events.push_back({s, m, Op::recompute, false});
      return false;
    }
    const auto& saved = spec_.specs[s].saved;
    return std::any_of(saved.begin(), saved.end(), [](const auto& item) { return item.recomputed; });
  }

  /// Per unit: the events of a micro-batch that read it, or what follows it; none for what follows another.
  std::vector<std::vector<int>> reading_events(int begin, int end) const {
    std::vector<int> leader(spec_.units.size());
    for (int u = 0; u < static_cast<int>(leader.size()); ++u)
      leader[u] = spec_.units[u].follows ? leader[u - 1] : u;
    std::vector<std::vector<int>> events(spec_.units.size());
    for (int e = begin; e < end; ++e) {
      for (const auto& use : spec_.specs[made_.events[e].layer].parameters) {
        auto& of_unit = events[leader[unit_of_[use.parameter]]];
        const bool is_known = !of_unit.empty() && of_unit.back() == e;
        if (!is_known && reads_parameter(spec_, made_.events[e], use)) of_unit.push_back(e);
      }
    }
    return events;
  }

  /// The loss event stands between forward and backward and belongs to both.
  void add_residencies(int m) {
    const int begin = m * made_.events_per_micro_batch, end = begin + made_.events_per_micro_batch;
    const int loss = begin + layers_ - 1;
    const auto reading = reading_events(begin, end);
    for (int u = 0; u < static_cast<int>(spec_.units.size()); ++u) {
      const auto& used = reading[u];
      if (used.empty()) continue;
      const auto parts = with_followers(spec_.units, u);
      if (std::all_of(parts.begin(), parts.end(), [&](int part) { return in_place_[part]; })) continue;
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

  Prefetch prefetch_of(const Residency& r) const {
    if (r.in_backward) return spec_.options.backward_prefetch;
    return spec_.options.forward_prefetch ? Prefetch::pre : Prefetch::none;
  }

  /// With prefetch, a unit is gathered as soon as the limit allows, but not before its own copy of the micro-batch before is
  /// freed. Gathers are issued in the order of use.
  void choose_issue_points() {
    GatherLimit limit(spec_.options.limit_all_gathers);
    std::map<std::pair<int, Pass>, IssuePoint> freed;
    IssuePoint earliest;
    int micro_batch = 0;
    for (auto& r : made_.residencies) {
      if (const int m = made_.events[r.first].micro_batch; m != micro_batch) {
        micro_batch = m;
        limit.begin_micro_batch();
      }
      r.issue = IssuePoint::before(r.first);
      const Prefetch prefetch = prefetch_of(r);
      if (prefetch == Prefetch::pre) r.issue = std::min(r.issue, limit.room());
      if (prefetch == Prefetch::post && r.first > 0) r.issue = IssuePoint::after(r.first - 1);
      const auto before = freed.find({r.unit, r.pass});
      if (before != freed.end()) earliest = std::max(earliest, before->second);
      earliest = r.issue = std::max(earliest, r.issue);
      freed[{r.unit, r.pass}] = IssuePoint::after(r.last);
      limit.add(r.last, passing(r));
    }
  }

  /// What the backward pass reads of a layer's output, unless it would come back at once; and what layers save, where that is asked
  /// for, but not of the last one before the loss. Copies in one direction follow each other. The pace is what may be copied
  /// in the time of a layer: the average of the pass, but at least a residual, or a quarter of what a layer saves. By this
  /// clock: after which layer a copy out is done, and before which one a copy back begins. Until the loss, where most memory
  /// is needed, there is room for what waits for its copy.
  void add_host_stays(int m) {
    constexpr int kLayersOfASavedCopy = 4;
    const int begin = m * made_.events_per_micro_batch, end = begin + made_.events_per_micro_batch;
    const int loss = begin + layers_ - 1;
    std::vector<Copied> copied = copied_layers(begin, end);
    if (copied.empty()) return;
    std::int64_t pace = 1, all = 0;  // bytes
    for (const Copied& c : copied) {
      all += c.bytes;
      pace = std::max(pace, ceil_div(c.bytes, c.is_residual() ? 1 : kLayersOfASavedCopy));
    }
    pace = std::max(pace, ceil_div(all, layers_ - 1));

    std::int64_t out_done = 0;  // in bytes at that pace, from the first layer on
    for (Copied& c : copied) {
      out_done = std::max(out_done, (c.stay.layer + 1) * pace) + c.bytes;
      c.stay.left = static_cast<int>(std::min(begin + ceil_div(out_done, pace) + 1, std::int64_t{loss}));
    }

    // Of the backward pass: where each layer begins, with what it recomputes, and how many are before an event.
    std::vector<int> layer_begins = {loss + 1}, layers_before(static_cast<std::size_t>(end - begin));
    for (int e = loss + 1; e < end; ++e) {
      layers_before[static_cast<std::size_t>(e - begin)] = static_cast<int>(layer_begins.size()) - 1;
      if (made_.events[e].op == Op::backward) layer_begins.push_back(e + 1);
    }
    std::ranges::stable_sort(copied, std::greater(), [](const Copied& c) { return c.stay.read; });
    std::int64_t back_begins = std::numeric_limits<std::int64_t>::max();  // likewise, from the loss on
    for (Copied& c : copied) {
      const std::int64_t read = pace * layers_before[static_cast<std::size_t>(c.stay.read - begin)];
      back_begins = std::min(back_begins, read) - c.bytes;
      const std::int64_t layer = back_begins < 0 ? -1 : back_begins / pace - 1;
      c.stay.returns = layer_begins[static_cast<std::size_t>(std::max<std::int64_t>(layer, 0))];
      c.stays_away = c.is_residual() ? layer >= 0 && c.stay.left < loss : c.stay.layer < layers_ - 2;
    }
    std::erase_if(copied, [](const Copied& c) { return !c.stays_away; });
    for (auto c = copied.rbegin(); c != copied.rend(); ++c) made_.host_stays.push_back(c->stay);
  }

  struct Copied {
    HostStay stay;
    std::int64_t bytes;
    bool stays_away = true;

    bool is_residual() const { return stay.payload == CopyPayload::residual; }
  };
  /// In the order of the forward pass.
  std::vector<Copied> copied_layers(int begin, int end) const {
    const int loss = begin + layers_ - 1;
    const auto& events = made_.events;
    std::vector<Copied> copied;
    for (int s = 0; s + 1 < layers_; ++s) {
      const auto add = [&](CopyPayload payload, std::int64_t bytes, auto reads) {
        int read = loss;
        while (read < end && !reads(events[read])) ++read;
        // Not needed, or made again.
        if (read == end || (payload == CopyPayload::residual && events[read].layer == s)) return;
        copied.push_back({{.layer = s, .payload = payload, .leaves = begin + s, .read = read}, bytes});
      };
      const auto& layer = spec_.specs[s];
      if (spec_.options.offload.residuals)
        add(CopyPayload::residual, layer.output.bytes(),
            [&](const ComputeEvent& event) { return touches_output(event, s); });
      if (checkpointing_of(s) != Checkpointing::offload || !ends_block(s)) continue;
      std::int64_t bytes = 0;
      for (const int item : offloaded_items(layer)) bytes += layer.saved[item].bytes();
      if (bytes > 0)
        add(CopyPayload::saved, bytes,
            [&](const ComputeEvent& event) { return event.layer == s && event.op == Op::backward; });
    }
    return copied;
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
  std::vector<Checkpointing> checkpointing_;  // per block
  Schedule made_;
};

}  // namespace

Schedule make_schedule(const ProgramSpec& spec, const std::vector<bool>& in_place) {
  return Scheduler(spec, in_place).run();
}

bool can_be_offloaded(const model::BufferSpec& saved) { return !saved.recomputed && saved.bytes() > 0; }

std::vector<int> offloaded_items(const model::LayerSpec& layer) {
  std::vector<int> items;
  for (int k = 0; k < static_cast<int>(layer.saved.size()); ++k) {
    if (can_be_offloaded(layer.saved[k])) items.push_back(k);
  }
  return items;
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
