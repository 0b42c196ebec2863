// SPDX-License-Identifier: Apache-2.0
// Everything that follows from (model, options, ranks) without a device.
#pragma once

#include <cstdint>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/comm/reduction.hpp"
#include "llampi/fsdp/device_mesh.hpp"
#include "llampi/fsdp/graph_room.hpp"
#include "llampi/fsdp/program.hpp"
#include "llampi/fsdp/step_options.hpp"
#include "llampi/fsdp/wrap.hpp"
#include "llampi/model/model.hpp"
#include "llampi/optim/adamw.hpp"
#include "llampi/optim/parameter_groups.hpp"

namespace llampi::fsdp {

struct EngineOptions : StepOptions {
  bool training = true;  ///< false: forward only, no moments, no gradients
  Strategy strategy = Strategy::full_shard;
  WrapOptions wrap;
  int shard_group_size = 0;  ///< hybrid strategies: ranks per shard group; 0: the ranks of a node
  /// no_shard and hybrid strategies: replicas divide the optimizer state of their shard, each updates its part and gathers
  /// those of the others. No bit changes. Not with Offload::params.
  bool shard_optimizer_over_replicas = false;
  bool graph = false;  ///< steps are captured and replayed, where the device can; no bit changes
  std::int64_t graph_nodes = kGraphNodes;  ///< the most of all captured steps together; no bit changes
  std::uint64_t seed = 0;                  ///< of stochastic rounding
  optim::AdamWConstants adamw;
  double clip_grad_norm = 0;                            ///< 0: off
  std::vector<optim::ParameterGroup> parameter_groups;  ///< one per parameter; training only
};

StepShape step_shape(const EngineOptions& options, const DeviceMesh& mesh);

/// The first parameter that Precision::int8_base would keep in blocks, though it has no whole number of them; -1: there is none.
int parameter_without_whole_blocks(const model::Model& model, const EngineOptions& options);

struct CompiledModel {
  std::vector<model::LayerSpec> specs;
  std::vector<Unit> units;
  std::vector<model::BufferSpec> constants;
  Program step;        ///< empty if not training
  Program evaluation;  ///< one micro-batch, forward only; its persistent buffers are those of the step
  ArenaBytes arena_bytes{};

  const PersistentBuffers& persistent() const { return evaluation.persistent; }
};
/// @throws ConfigError where sums cannot have the order that is asked for, UserError where no layer uses a trained parameter
CompiledModel compile_model(const model::Model& model, const EngineOptions& options, const DeviceMesh& mesh,
                            const device::OperationSizes& sizes, comm::Backend backend = comm::Backend::mpi);

}  // namespace llampi::fsdp
