// SPDX-License-Identifier: Apache-2.0
// Small Llamas and their compiled lists, for tests that run nothing.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "fsdp/program/builder.hpp"
#include "llampi/fsdp/compiled_model.hpp"
#include "llampi/fsdp/dump.hpp"
#include "llampi/fsdp/placement.hpp"
#include "llampi/model/fp8_recipe.hpp"
#include "llampi/model/llama.hpp"

namespace llampi::test {

struct ListCase {
  int layers = 3;
  bool tied = false;
  int ranks = 2;
  fsdp::Strategy strategy = fsdp::Strategy::full_shard;
  int micro_batches = 1;
  fsdp::Prefetch backward_prefetch = fsdp::Prefetch::pre;
  bool forward_prefetch = true;
  int limit = 2;
  bool reshard_after_forward = true;
  int shards = 0;  ///< hybrid: ranks per shard group; 0: as the strategy says
  bool unsharded = false;
  fsdp::BlockCheckpointing checkpointing = {};
  fsdp::WrapOptions wrap = {};
  bool mixed = false;  ///< parameters and reductions in bfloat16
  fsdp::Offload offload = {};
  bool short_gradient = false;  ///< likewise sharded gradients
  bool frozen = false;  ///< the embedding, block 0, and in the other blocks k_proj, q_proj and the norms
  bool on_gpus = false;
  bool fp8 = false;  ///< products of blocks in 8 bits; of a model whose sizes are multiples of 16
  int layers_of_block = 2;
  /// With `fp8`, the scales; of blocks: of a larger model, whose sizes are multiples of 128.
  model::Fp8Scales fp8_scales = model::Fp8Scales::tensor;
  fsdp::SumOrder sum_order = fsdp::SumOrder::any;
  bool state_over_replicas = false;
  bool all_reduce_stream = false;
  bool int8_base =
      false;  ///< with `frozen`: Precision::int8_base, of a model whose matrices have multiples of 128 elements

  fsdp::Precision precision() const {
    fsdp::Precision precision;
    if (mixed) precision.param = precision.reduce = DType::bfloat16;
    if (short_gradient) precision.gradient_shard = precision.reduce = DType::bfloat16;
    if (computes_in_bfloat16()) precision.compute = DType::bfloat16;
    if (int8_base) precision.frozen = DType::bfloat16, precision.int8_base = true;
    return precision;
  }
  bool computes_in_bfloat16() const { return mixed && short_gradient && on_gpus; }
  /// Gradients of all units: else they are written where they are kept.
  bool reduces() const {
    const bool written_in_bfloat16 = computes_in_bfloat16() && (!unsharded || micro_batches == 1);
    return ranks > 1 || in_tree() || (short_gradient && !written_in_bfloat16);
  }
  bool in_tree() const { return sum_order == fsdp::SumOrder::tree; }
  int shard_count() const { return shards > 0 ? shards : (strategy == fsdp::Strategy::no_shard ? 1 : ranks); }

  int state_parts() const { return state_over_replicas ? ranks / shard_count() : 1; }

  std::string name() const;
};

void PrintTo(const ListCase& options, std::ostream* out);  ///< GoogleTest's way to print a value

/// A spread of all of them.
std::vector<ListCase> list_cases();

struct Lists {
  std::unique_ptr<model::Model> model;
  ListCase options;
  std::vector<model::LayerSpec> specs;
  std::vector<fsdp::Unit> units;
  std::vector<model::BufferSpec> constants;
  fsdp::Program step, evaluation;
  std::vector<int> unit_of;

  bool trained(int parameter) const {
    return !units[static_cast<std::size_t>(unit_of[static_cast<std::size_t>(parameter)])].frozen;
  }
  bool last_layer(int layer) const { return layer + 1 == static_cast<int>(specs.size()); }
};
/// @param change of what the case says, before the programs are built
Lists make_lists(const ListCase& options, const std::function<void(fsdp::ProgramSpec&)>& change = {});
/// Likewise, with the programs' buffers in their places.
Lists make_placed_lists(const ListCase& options);

}  // namespace llampi::test
