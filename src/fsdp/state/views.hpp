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
  StateViews(const model::Model& model, const EngineOptions& options, const CompiledModel& compiled,
             const Arenas& arenas, const comm::Group& shards, const comm::Group& replicas)
      : model_(model),
        options_(options),
        compiled_(compiled),
        arenas_(arenas),
        shards_(shards),
        replicas_(replicas) {}

  /// Of what replicas hold alike, this rank's part: every element of the model is in one rank's pieces.
  std::vector<StatePiece> to_save() const;
  /// Everything.
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
  struct ShardPart {  ///< elements [begin, end) of a unit's shard
    std::int64_t begin, end;
  };
  /// Which buffers of a unit hold its state.
  struct Home {
    BufferId UnitState::*master, UnitState::*exp_avg, UnitState::*exp_avg_sq;
    bool part_only;  ///< they begin with saved_part()
  };
  static constexpr Home kKept = {&UnitState::master, &UnitState::exp_avg, &UnitState::exp_avg_sq, false};
  static constexpr Home kSnapshot = {&UnitState::saved_master, &UnitState::saved_exp_avg,
                                     &UnitState::saved_exp_avg_sq, true};
  ShardPart saved_part(int unit) const;
  std::vector<StatePiece> pieces(bool divide_replicas, const Home& home) const;

  const model::Model& model_;
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

/// Parameter shards that are copies of masters follow them, wherever both are.
/// @param host computes in host memory
void refresh_shards(const CompiledModel& compiled, const Arenas& arenas, device::Device& device,
                    device::Device& host);

}  // namespace llampi::fsdp
