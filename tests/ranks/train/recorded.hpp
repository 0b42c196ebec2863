// SPDX-License-Identifier: Apache-2.0
// The traces of a run, read from its files. Nothing here knows the list of actions; units, layers and
// parameters are asked for, since the trace names them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "llampi/train/compiled_run.hpp"

namespace llampi::test {

/// An event of a trace, in the order in which they were issued.
struct TraceEvent {
  std::string op, name, pass, payload;
  int unit = -1, layer = -1, micro_batch = -1, stream = -1;
  std::int64_t bytes = 0;
  std::vector<int> ranks;
  double begin = 0, end = 0;  // microseconds

  bool computes() const { return op == "forward" || op == "recompute" || op == "backward"; }
  bool reduces() const { return op == "reduce" || op == "all_reduce"; }
};
using Events = std::vector<TraceEvent>;

inline Events read_trace(const std::filesystem::path& file) {
  std::ifstream in(file);
  const auto trace = nlohmann::json::parse(in);
  Events events;
  for (const auto& json : trace["traceEvents"]) {
    if (json["ph"] != "X") continue;
    const auto& args = json["args"];
    TraceEvent e;
    e.op = json["cat"], e.name = json["name"];
    e.pass = args.value("pass", ""), e.payload = args.value("payload", "");
    e.unit = args.value("unit", -1), e.layer = args.value("layer", -1);
    e.micro_batch = args.value("micro_batch", -1), e.stream = json["tid"];
    e.bytes = args.value("bytes", std::int64_t{0});
    e.ranks = args.value("ranks", std::vector<int>());
    e.begin = json["args"]["issued"], e.end = json["ts"].get<double>() + json["dur"].get<double>();
    events.push_back(e);
  }
  EXPECT_FALSE(events.empty()) << file;
  return events;
}

/// What a unit's gathered parameters are there for: from where their gather is issued to where they are given
/// up. All but `unit` are indices of events.
struct Stay {
  int unit = 0;  // the first one, where a frozen part follows
  int issued = 0, first_use = -1, last_use = -1, given_up = -1;
  bool in_backward = false;  // first used behind the loss
  bool extra = false;        // another unit's use begins inside: the limit does not count it
};

/// The traces of all ranks of a run.
struct Recorded {
  train::Config config;
  train::CompiledRun run;  // its units, layers and parameters; not its actions
  std::vector<Events> ranks;

  const std::vector<fsdp::Unit>& units() const { return run.compiled.units; }
  int leader(int unit) const {
    while (units()[unit].follows) --unit;
    return unit;
  }
  bool trained(int unit) const { return !units()[unit].frozen; }
  bool is_loss(const TraceEvent& e) const {
    return e.layer + 1 == static_cast<int>(run.compiled.specs.size());
  }
  bool behind_loss(const TraceEvent& e) const {
    return e.op == "recompute" || (e.op == "backward" && !is_loss(e));
  }
  /// The layer reads parameters of this unit or of what follows it.
  bool reads(const TraceEvent& e, int unit) const {
    if (!e.computes()) return false;
    const auto unit_of = fsdp::unit_of_parameter(units(), run.model->parameters().size());
    const auto& uses = run.compiled.specs[e.layer].parameters;
    return std::any_of(uses.begin(), uses.end(), [&](const auto& use) {
      const bool read = e.op != "backward" ? use.forward : use.backward || (is_loss(e) && use.forward);
      return read && leader(unit_of[use.parameter]) == unit;
    });
  }

  // Expected groups: consecutive ranks shard, those with the same place in their groups are replicas.
  int world_size() const { return static_cast<int>(ranks.size()); }
  int group_size() const {
    if (config.fsdp.strategy == fsdp::Strategy::no_shard) return 1;
    return config.fsdp.shard_group_size.value_or(world_size());
  }
  std::vector<int> shard_group(int rank) const {
    std::vector<int> group(group_size());
    std::iota(group.begin(), group.end(), rank / group_size() * group_size());
    return group;
  }
  std::vector<int> replicas(int rank) const {
    std::vector<int> group;
    for (int r = rank % group_size(); r < world_size(); r += group_size()) group.push_back(r);
    return group;
  }
};

/// In the order of first use.
inline std::vector<Stay> stays(const Recorded& recorded, const Events& events) {
  std::vector<Stay> all;
  std::map<std::tuple<int, std::string, int>, std::size_t> open;
  for (int i = 0; i < static_cast<int>(events.size()); ++i) {
    const TraceEvent& e = events[i];
    const int unit = e.unit < 0 ? -1 : recorded.leader(e.unit);
    const std::tuple key{unit, e.pass, e.micro_batch};
    if (e.op == "unshard" || e.op == "cast_params" || e.payload == "shard") {
      if (open.emplace(key, all.size()).second) all.push_back({.unit = unit, .issued = i});
    } else if (e.op == "reshard") {
      EXPECT_TRUE(open.count(key)) << e.name << " of what is not gathered";
      if (open.count(key)) all[open[key]].given_up = i;
    }
    for (auto& [of, index] : open) {
      const auto& [u, pass, micro_batch] = of;
      auto& stay = all[index];
      if (stay.given_up >= 0 || e.micro_batch != micro_batch || !recorded.reads(e, u)) continue;
      if (pass == "backward" && !recorded.behind_loss(e)) continue;  // reads the copy of the forward pass
      if (stay.first_use < 0) stay.first_use = i, stay.in_backward = recorded.behind_loss(e);
      stay.last_use = i;
    }
  }
  for (const auto& stay : all) {
    EXPECT_GE(stay.first_use, 0) << events[stay.issued].name << " for nothing";
    EXPECT_GE(stay.given_up, 0) << events[stay.issued].name << " for ever";
  }
  std::erase_if(all, [](const Stay& stay) { return stay.first_use < 0 || stay.given_up < 0; });
  std::stable_sort(all.begin(), all.end(),
                   [](const Stay& a, const Stay& b) { return a.first_use < b.first_use; });
  for (auto& stay : all) {
    stay.extra = std::any_of(all.begin(), all.end(), [&](const Stay& other) {
      return stay.first_use < other.first_use && other.first_use <= stay.last_use;
    });
  }
  return all;
}

}  // namespace llampi::test
