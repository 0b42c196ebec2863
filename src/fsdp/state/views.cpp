// SPDX-License-Identifier: Apache-2.0
#include "fsdp/state/views.hpp"

#include <algorithm>

#include "llampi/comm/comm.hpp"

namespace llampi::fsdp {

/// Replicas hold the same shard: each saves an equal part of it.
StateViews::ShardRange StateViews::saved_part(int unit) const {
  const std::int64_t elements = compiled_.units[static_cast<std::size_t>(unit)].shard_elements;
  const int parts = replicas_.size(), part = replicas_.rank();
  return {elements * part / parts, elements * (part + 1) / parts};
}

Tensor StateViews::in_shard(int unit, BufferId buffer, ShardRange range) const {
  const Tensor kept = at(buffer);
  const bool all = kept.elements() == whole(unit).end;
  const std::int64_t first = all ? 0 : saved_part(unit).begin;
  return kept.slice(range.begin - first, range.end - first);
}

template <class RangeOf, class HomeOf>
std::vector<StatePiece> StateViews::pieces(const RangeOf& range_of, const HomeOf& home_of) const {
  std::vector<StatePiece> result;
  for (int u = 0; u < static_cast<int>(compiled_.units.size()); ++u) {
    const auto& unit = compiled_.units[u];
    const Home home = home_of(u);
    if (home.master == BufferId::none) continue;
    const ShardRange range = range_of(u);
    for (const auto& piece : shard_pieces(unit, shards_.rank())) {
      const std::int64_t from = std::max(range.begin, piece.shard_offset);
      const std::int64_t to = std::min(range.end, piece.shard_offset + piece.elements);
      if (from >= to) continue;
      auto& made = result.emplace_back(StatePiece{piece.parameter,
                                                  piece.begin + from - piece.shard_offset,
                                                  in_shard(u, home.master, {from, to}),
                                                  {},
                                                  {}});
      made.in_host_memory = compiled_.evaluation[home.master].arena == Arena::host;
      const bool trained =
          options_.training && !unit.frozen && !options_.parameter_groups[piece.parameter].frozen;
      if (!trained || home.exp_avg == BufferId::none) continue;
      made.exp_avg = in_shard(u, home.exp_avg, {from, to});
      made.exp_avg_sq = in_shard(u, home.exp_avg_sq, {from, to});
    }
  }
  return result;
}

std::vector<StatePiece> StateViews::to_save() const {
  const auto home = [this](int u) {
    const bool left_out = compiled_.units[static_cast<std::size_t>(u)].frozen && !options_.saves_frozen;
    return left_out ? Home{BufferId::none, BufferId::none, BufferId::none} : kept(u);
  };
  return pieces([this](int u) { return saved_part(u); }, home);
}

std::vector<StatePiece> StateViews::to_load() const {
  const auto range = [this](int u) { return divides_state(u) ? saved_part(u) : whole(u); };
  return pieces(range, [this](int u) { return kept(u); });
}

std::vector<StatePiece> StateViews::held() const {
  const auto home = [this](int u) {
    return divides_state(u) ? Home{compiled_.persistent().units[u].shard, BufferId::none, BufferId::none}
                            : kept(u);
  };
  return pieces([this](int u) { return whole(u); }, home);
}

std::vector<StatePiece> StateViews::in_snapshot() const {
  return pieces([this](int u) { return saved_part(u); }, [this](int u) { return saved(u); });
}

std::vector<StateViews::Copy> StateViews::snapshot_copies() const {
  std::vector<Copy> copies;
  for (int u = 0; u < static_cast<int>(compiled_.units.size()); ++u) {
    const Home from = kept(u), to = saved(u);
    const auto add = [&](BufferId kept_in, BufferId saved_in) {
      if (saved_in != BufferId::none) copies.push_back({in_shard(u, kept_in, saved_part(u)), saved_in});
    };
    add(from.master, to.master);
    add(from.exp_avg, to.exp_avg);
    add(from.exp_avg_sq, to.exp_avg_sq);
  }
  return copies;
}

}  // namespace llampi::fsdp
