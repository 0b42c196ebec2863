// SPDX-License-Identifier: Apache-2.0
// What a program is made from.
#pragma once

#include <cstdint>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/fsdp/step_options.hpp"
#include "llampi/fsdp/unit.hpp"
#include "llampi/model/model.hpp"

namespace llampi::fsdp {

/// All that a program follows from. What is referred to must live as long.
struct ProgramSpec {
  const std::vector<model::Parameter>& parameters;  ///< of the model
  const std::vector<model::LayerSpec>& specs;       ///< of the layers, in order; the last layer is the loss
  const std::vector<Unit>& units;
  const std::vector<model::BufferSpec>& constants;
  StepOptions options;
  std::int64_t vocabulary = 0;

  bool forward_only = false;          ///< evaluation: no loss gradient, no update
  bool reshard_after_forward = true;  ///< full_shard; false: shard_grad_op
  std::vector<int> blocks = {};       ///< per layer: its block, from 0 on; -1 outside

  int shards = 1;    ///< ranks of the shard group
  int replicas = 1;  ///< ranks that hold the same shard
  comm::Backend backend = comm::Backend::mpi;

  int input_buffers = 1;              ///< the most micro-batches of any program that shares the arena
  bool optimizer_state = true;        ///< moments
  std::int64_t shared_workspace = 0;  ///< bytes that the device's operations share
  bool stages_inputs = false;         ///< OperationSizes::stages_inputs()
};

}  // namespace llampi::fsdp
