// SPDX-License-Identifier: Apache-2.0
// The state of training that a rank has, as pieces of parameters.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/fsdp/arenas.hpp"
#include "llampi/fsdp/compiled_model.hpp"
#include "llampi/fsdp/state_piece.hpp"

namespace llampi::fsdp {

class StateViews {
 public:
  /// All must outlive it.
  StateViews(const EngineOptions& options, const CompiledModel& compiled, const Arenas& arenas,
             const comm::Group& shards, const comm::Group& replicas)
      : options_(options), compiled_(compiled), arenas_(arenas), shards_(shards), replicas_(replicas) {}

  /// Of what replicas hold alike, this rank's part: every element of the model is in one rank's pieces, but for those of
  /// frozen units without EngineOptions::saves_frozen.
  std::vector<StatePiece> to_save() const;
  /// What this rank must be given: all that it keeps, with what replicas keep as well.
  std::vector<StatePiece> to_load() const;
  /// What this rank has of the parameters, with what other ranks have as well, and of the moments where replicas have all
  /// of them; of the parameters in the dtype that is gathered where they divide the optimizer state.
  std::vector<StatePiece> held() const;
  /// to_save(), in the snapshot's memory.
  std::vector<StatePiece> in_snapshot() const;

  /// What a snapshot copies, and where to.
  struct Copy {
    Tensor from;
    BufferId to;
  };
  std::vector<Copy> snapshot_copies() const;
  Tensor at(BufferId persistent) const { return arenas_.at(compiled_.evaluation[persistent]); }

 private:
  /// Buffers of a unit; moments may be none.
  struct Home {
    BufferId master, exp_avg, exp_avg_sq;
  };
  struct ShardRange {  ///< elements [begin, end) of a unit's shard
    std::int64_t begin, end;
  };
  ShardRange whole(int unit) const {
    return {0, compiled_.units[static_cast<std::size_t>(unit)].shard_elements};
  }
  ShardRange saved_part(int unit) const;
  bool divides_state(int unit) const {
    return compiled_.units[static_cast<std::size_t>(unit)].state_parts > 1;
  }
  Home kept(int unit) const {
    const UnitState& state = compiled_.persistent().units[static_cast<std::size_t>(unit)];
    return {state.master, state.exp_avg, state.exp_avg_sq};
  }
  Home saved(int unit) const {
    const UnitState& state = compiled_.persistent().units[static_cast<std::size_t>(unit)];
    return {state.saved_master, state.saved_exp_avg, state.saved_exp_avg_sq};
  }
  /// Elements of the unit's shard, of which the buffer has all or saved_part().
  Tensor in_shard(int unit, BufferId buffer, ShardRange range) const;
  /// @param range_of, home_of of a unit by its number
  template <class RangeOf, class HomeOf>
  std::vector<StatePiece> pieces(const RangeOf& range_of, const HomeOf& home_of) const;

  const EngineOptions& options_;
  const CompiledModel& compiled_;
  const Arenas& arenas_;
  const comm::Group& shards_;
  const comm::Group& replicas_;
};

/// Initial values by Philox, keyed by (seed, name, element): drawn where they lie.
/// @param host computes in host memory
void fill_with_initial_values(const model::Model& model, device::Device& device, device::Device& host,
                              const std::vector<StatePiece>& pieces, std::uint64_t seed);

/// Parameter shards that are copies of masters follow them, wherever both are. Collective where replicas divide the
/// optimizer state: then each gathers the parts of the others. Complete when the compute stream comes to it.
/// @param host computes in host memory
void refresh_shards(const CompiledModel& compiled, const Arenas& arenas, device::Device& device,
                    device::Device& host, comm::Group& replicas, device::Stream gathers_on);

}  // namespace llampi::fsdp
