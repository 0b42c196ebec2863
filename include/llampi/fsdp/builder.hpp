// SPDX-License-Identifier: Apache-2.0
// From (model, units, options) to a Program: the only place that decides which actions there are, in which
// order, and with which operands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/core/words.hpp"
#include "llampi/fsdp/program.hpp"
#include "llampi/fsdp/storage.hpp"
#include "llampi/fsdp/sum_order.hpp"
#include "llampi/fsdp/unit.hpp"
#include "llampi/model/model.hpp"

namespace llampi::fsdp {

enum class Prefetch : std::uint8_t { pre, post, none };
constexpr auto word_table(Prefetch) {
  return std::to_array<Word<Prefetch>>(
      {{Prefetch::pre, "pre"}, {Prefetch::post, "post"}, {Prefetch::none, "none"}});
}

/// Activation checkpointing (Chen et al., arXiv 1604.06174; selective: Korthikanti et al., arXiv 2205.05198).
enum class Checkpointing : std::uint8_t {
  none,       ///< saved tensors live from forward to backward
  full,       ///< of each block only the input lives; the block runs forward again before its backward
  selective,  ///< saved tensors that are marked (BufferSpec::recomputed) are recomputed, the others are saved
  feed_forward,  ///< the last layer of a block runs forward again from its input; of the others as selective
};
constexpr auto word_table(Checkpointing) {
  return std::to_array<Word<Checkpointing>>({{Checkpointing::none, "none"},
                                             {Checkpointing::selective, "selective"},
                                             {Checkpointing::feed_forward, "feed_forward"},
                                             {Checkpointing::full, "full"}});
}

/// Of each block of a model its own.
struct BlockCheckpointing {
  // NOLINTNEXTLINE(google-explicit-constructor): the same for all blocks
  BlockCheckpointing(Checkpointing of_all = Checkpointing::none) : blocks{of_all} {}
  /// The first `count` blocks, then all others.
  BlockCheckpointing(Checkpointing of_first, int count, Checkpointing of_others)
      : blocks(static_cast<std::size_t>(count), of_first) {
    blocks.push_back(of_others);
  }

  std::vector<Checkpointing> blocks;  ///< from the first block on; the last one holds for all that follow

  Checkpointing of(std::size_t block) const { return block < blocks.size() ? blocks[block] : blocks.back(); }
  bool operator==(const BlockCheckpointing&) const = default;
};
/// "none"; "full 4, feed_forward": four blocks, and all that follow.
std::string to_string(const BlockCheckpointing& checkpointing);
/// None for what is not so written.
std::optional<BlockCheckpointing> parse_checkpointing(std::string_view text);

/// All that a program follows from. What is referred to must live as long.
struct ProgramSpec {
  const std::vector<model::Parameter>& parameters;  ///< of the model
  const std::vector<model::LayerSpec>& specs;       ///< of the layers, in order; the last layer is the loss
  const std::vector<Unit>& units;
  const std::vector<model::BufferSpec>& constants;
  model::BatchShape batch;  ///< of a micro-batch
  std::int64_t vocabulary = 0;

  bool forward_only = false;  ///< evaluation: no loss gradient, no update
  int micro_batches = 1;
  bool reshard_after_forward = true;  ///< full_shard; false: shard_grad_op
  Prefetch backward_prefetch = Prefetch::pre;
  bool forward_prefetch = true;
  int limit_all_gathers = 2;  ///< maximum number of units unsharded at the same time, at least 1
  /// Micro-batches add up in unsharded gradients, which are reduced once; otherwise each is reduced into the
  /// sharded gradient.
  bool accumulate_unsharded = false;
  SumOrder sum_order = SumOrder::any;  ///< of micro-batches
  Precision precision = {};
  Offload offload = {};
  BlockCheckpointing checkpointing = {};
  std::vector<int> blocks = {};  ///< per layer: its block, from 0 on; -1 outside

  int shards = 1;    ///< ranks of the shard group
  int replicas = 1;  ///< ranks that hold the same shard
  comm::Backend backend = comm::Backend::mpi;
  comm::Reduction reduction = comm::Reduction::tree;
  /// Hybrid: replicas join their sharded gradients on a stream of its own, with a workspace of its own.
  bool all_reduce_stream = false;

  int input_buffers = 1;              ///< the most micro-batches of any program that shares the arena
  bool optimizer_state = true;        ///< moments
  std::int64_t shared_workspace = 0;  ///< bytes that the device's operations share
  bool stages_inputs = false;         ///< OperationSizes::stages_inputs()
  bool snapshot = false;              ///< room to save the state while training goes on
  bool saves_frozen = true;           ///< frozen units are part of what is saved
};

/// The program, not yet placed.
/// A unit of one shard needs no gather: its parameters are read where they are kept, if that is the device
/// and the dtype is that of compute. The backward pass ends with the first layer that has a trained
/// parameter.
Program build(const ProgramSpec& spec);

}  // namespace llampi::fsdp
