// SPDX-License-Identifier: Apache-2.0
#include "fsdp/state/views.hpp"

#include <algorithm>

#include "llampi/comm/comm.hpp"

namespace llampi::fsdp {

/// Replicas hold the same shard: each saves an equal slice of it.
StateViews::ShardPart StateViews::saved_part(int unit) const {
  const std::int64_t elements = compiled_.units[static_cast<std::size_t>(unit)].shard_elements;
  const int parts = replicas_.size(), part = replicas_.rank();
  return {elements * part / parts, elements * (part + 1) / parts};
}

std::vector<StatePiece> StateViews::pieces(bool divide_replicas, const Home& home) const {
  std::vector<StatePiece> result;
  for (int u = 0; u < static_cast<int>(compiled_.units.size()); ++u) {
    const auto& unit = compiled_.units[u];
    const UnitState& buffers = compiled_.persistent().units[u];
    const ShardPart part = divide_replicas ? saved_part(u) : ShardPart{0, unit.shard_elements};
    const std::int64_t base = home.part_only ? part.begin : 0;
    for (const auto& piece : shard_pieces(unit, shards_.rank())) {
      const std::int64_t from = std::max(part.begin, piece.shard_offset);
      const std::int64_t to = std::min(part.end, piece.shard_offset + piece.elements);
      if (from >= to) continue;
      const auto state = [&](BufferId UnitState::*which) {
        return at(buffers.*which).slice(from - base, to - base);
      };
      auto& made = result.emplace_back(
          StatePiece{piece.parameter, piece.begin + from - piece.shard_offset, state(home.master), {}, {}});
      made.in_host_memory = compiled_.evaluation[buffers.*home.master].arena == Arena::host;
      if (!options_.training || unit.frozen || options_.groups[piece.parameter].frozen) continue;
      made.exp_avg = state(home.exp_avg);
      made.exp_avg_sq = state(home.exp_avg_sq);
    }
  }
  return result;
}

std::vector<StatePiece> StateViews::to_save() const { return pieces(true, kKept); }

std::vector<StatePiece> StateViews::held() const { return pieces(false, kKept); }

std::vector<StatePiece> StateViews::in_snapshot() const { return pieces(true, kSnapshot); }

std::vector<StateViews::Copy> StateViews::snapshot_copies() const {
  std::vector<Copy> copies;
  for (int u = 0; u < static_cast<int>(compiled_.units.size()); ++u) {
    const UnitState& buffers = compiled_.persistent().units[u];
    const ShardPart part = saved_part(u);
    const auto add = [&](BufferId from, BufferId to) {
      if (to != BufferId::none) copies.push_back({at(from).slice(part.begin, part.end), to});
    };
    add(buffers.master, buffers.saved_master);
    add(buffers.exp_avg, buffers.saved_exp_avg);
    add(buffers.exp_avg_sq, buffers.saved_exp_avg_sq);
  }
  return copies;
}

}  // namespace llampi::fsdp
