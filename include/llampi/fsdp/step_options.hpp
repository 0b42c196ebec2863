// SPDX-License-Identifier: Apache-2.0
// The options of a step: which units are prefetched, what is recomputed, in which dtypes, what is kept in host memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llampi/comm/reduction.hpp"
#include "llampi/core/words.hpp"
#include "llampi/fsdp/storage.hpp"
#include "llampi/fsdp/sum_order.hpp"
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
  offload,    ///< as selective; what the last layer of a block saves is copied to host memory and back
  feed_forward,  ///< the last layer of a block runs forward again from its input; of the others as selective
};
constexpr auto word_table(Checkpointing) {
  return std::to_array<Word<Checkpointing>>({{Checkpointing::none, "none"},
                                             {Checkpointing::selective, "selective"},
                                             {Checkpointing::offload, "offload"},
                                             {Checkpointing::feed_forward, "feed_forward"},
                                             {Checkpointing::full, "full"}});
}

/// Of each block of a model its own.
struct BlockCheckpointing {
  // NOLINTNEXTLINE(google-explicit-constructor): the same for all blocks
  BlockCheckpointing(Checkpointing of_all = Checkpointing::none) : blocks{of_all} {}
  /// The first `count` blocks, then all others.
  BlockCheckpointing(Checkpointing of_first, int count, Checkpointing of_others)
      : BlockCheckpointing(std::vector(static_cast<std::size_t>(count), of_first), of_others) {}
  /// The first blocks one by one, then all others.
  BlockCheckpointing(std::vector<Checkpointing> of_first, Checkpointing of_others)
      : blocks(std::move(of_first)) {
    blocks.push_back(of_others);
  }

  std::vector<Checkpointing> blocks;  ///< from the first block on; the last one holds for all that follow

  /// Of each block of a model that has `count`: in this order, except that as many as have `offload` are spread evenly, so that
  /// what one saves has been copied when the next one is computed.
  std::vector<Checkpointing> of_blocks(std::size_t count) const;
  bool uses(Checkpointing level) const { return std::ranges::find(blocks, level) != blocks.end(); }
  bool operator==(const BlockCheckpointing&) const = default;
};
/// "none"; "full 4, feed_forward": four blocks, and all that follow.
std::string to_string(const BlockCheckpointing& checkpointing);
/// None for what is not so written.
std::optional<BlockCheckpointing> parse_checkpointing(std::string_view text);

/// The part of EngineOptions from which the program is made.
struct StepOptions {
  model::BatchShape batch = {};  ///< of a micro-batch
  int micro_batches = 1;         ///< per step
  Prefetch backward_prefetch = Prefetch::pre;
  bool forward_prefetch = true;
  int limit_all_gathers = 2;  ///< maximum number of units unsharded at the same time, at least 1
  /// Micro-batches add up in unsharded gradients, which are reduced once; otherwise each is reduced into the
  /// sharded gradient.
  bool accumulate_unsharded = false;
  SumOrder sum_order =
      SumOrder::any;  ///< of micro-batches; the caller gives ranks those of micro_batch_number()
  comm::Reduction reduction = comm::Reduction::tree;  ///< between GPUs: that of the world
  /// Hybrid strategies: replicas join their sharded gradients on a stream of its own, with a workspace of its own.
  bool all_reduce_stream = false;
  BlockCheckpointing checkpointing = {};
  Precision precision = {};
  Offload offload = {};
  bool snapshot = false;     ///< room to save the state while training goes on: Engine::snapshot()
  bool saves_frozen = true;  ///< false: what is saved has none of the frozen units, which come from elsewhere
};

}  // namespace llampi::fsdp
