// SPDX-License-Identifier: Apache-2.0
// A training run as it would be compiled, without the ranks, the device and the data that it needs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/fsdp/available_memory.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/model/model.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

struct RunShape {
  int ranks = 1;
  int ranks_per_node = 0;            ///< rank r is on node r / ranks_per_node; 0: all on one node
  std::vector<int> node_ranks = {};  ///< where nodes differ, the ranks of each: as many as `ranks` together
  int threads = 0;                   ///< per rank; 0: as the configuration says
  comm::Backend backend = comm::Backend::mpi;  ///< of the collectives: nccl for GPUs
  fsdp::AvailableMemory memory = {};           ///< by which what is `auto` is decided
  std::string gpu = "this GPU";                ///< in messages
  int gpu_major = 9, gpu_minor = 0;            ///< its compute capability

  bool on_gpu() const { return backend == comm::Backend::nccl; }
};

/// The ranks of a running job, node by node.
RunShape shape_of(const comm::Topology& topology);
/// With automatic values replaced by the resulting numbers; ranks_per_node is the most of any node then.
RunShape resolved(RunShape shape, const Config& config);
/// The node of each rank. @param shape resolved
std::vector<int> nodes_of_ranks(const RunShape& shape);

struct CompiledRun {
  RunShape shape;  ///< resolved
  std::vector<int> node_of_rank;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<device::OperationSizes> sizes;
  fsdp::DeviceMesh mesh;
  fsdp::EngineOptions options;
  fsdp::CompiledModel compiled;
  std::int64_t max_positions = 0;  ///< of a sequence: the model's max_position_embeddings
};

/// The configuration with another strategy, without the keys that this one does not have.
Config with_strategy(Config config, fsdp::Strategy strategy);

/// What every rank of train() would compile. Reads the model's config.json and nothing else. Threads that
/// nothing says are the cores that this process may run on over the ranks of a node.
/// @throws UserError for what train() would refuse of it
CompiledRun compile_run(const Config& config, const RunShape& shape);

/// The longest data.seq_len with which the run fits into the memory of its shape, as fsdp::fitting_seq_len(): what is decided by the
/// memory that is left is decided for that length.
/// @param run compile_run() of both, which fits
std::int64_t longest_seq_len(Config config, const RunShape& shape, const CompiledRun& run);

}  // namespace llampi::train
