// SPDX-License-Identifier: Apache-2.0
// Training of an oracle case on the ranks of the test's world.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "llampi/fsdp/engine.hpp"
#include "llampi/optim/schedule.hpp"
#include "support/oracle.hpp"

namespace llampi::test {

/// What else than the CPU and MPI a run is to use.
struct Machine {
  device::Device& device;
  device::Device& host;
  comm::World& world;  ///< with groups on the device's memory
};

struct TrajectoryOptions {
  fsdp::Strategy strategy = fsdp::Strategy::full_shard;
  int accumulation = 1;
  fsdp::Prefetch backward_prefetch = fsdp::Prefetch::pre;
  bool forward_prefetch = true;
  int limit = 2;
  bool poison = false;   ///< NaN in all transient memory before every step
  bool float64 = false;  ///< on the reference device
  int shard_group_size = 0;
  bool state_over_replicas = false;  ///< EngineOptions::shard_optimizer_over_replicas
  bool unsharded = false;
  fsdp::SumOrder sum_order = fsdp::SumOrder::any;
  comm::Reduction reduction = comm::Reduction::tree;  ///< that of the machine's world
  bool all_reduce_stream = false;
  std::int64_t global_batch = 0;  ///< instead of the fixture's; 0: that
  fsdp::BlockCheckpointing checkpointing = {};
  fsdp::Precision precision = {};
  double loss_scale = 1;
  bool without_fp8 = false;  ///< though the fixture has products in 8 bits
  fsdp::WrapOptions wrap = {};
  fsdp::Offload offload = {};
  std::string frozen = {};  ///< besides what the fixture's rules say
  /// Of a whole parameter's initial values; none: they stay as the fixture has them.
  std::function<void(const model::Parameter&, std::vector<double>&)> change_initial = {};
  Machine* machine = nullptr;  ///< null: a CPU device
  bool observed = false;       ///< somebody watches each action, as the trace does
  bool graph = false;          ///< EngineOptions::graph
  std::int64_t graph_nodes = fsdp::kGraphNodes;
  bool snapshot = false;            ///< EngineOptions::snapshot
  bool saves_frozen = true;         ///< EngineOptions::saves_frozen
  std::int64_t attention_room = 0;  ///< BatchShape::attention_room
  int drop = 0;  ///< each step is begun, dropped before its micro-batch of this index, and redone
};

struct Trajectory {
  std::vector<double> losses, grad_norms;
  /// Whole, on every rank; without `saves_frozen` zeros of what is frozen.
  std::map<std::string, std::vector<double>> final_parameters;
  std::int64_t fp8_saturated = 0;  ///< of this rank
};

/// Whole parameters on every rank, from the ranks' pieces. Collective.
std::map<std::string, std::vector<double>> whole_parameters(comm::World& world, device::Device& device,
                                                            const fsdp::Engine& engine);

/// A run, step by step. Samples are dealt out in order; slots that are left over are empty, so that any
/// number of ranks and micro-batches works.
class TrainingRun {
 public:
  /// All must outlive it.
  TrainingRun(comm::World& world, const oracle::Fixture& fixture, const TrajectoryOptions& options);

  struct Inputs {
    std::vector<device::HostBatch> micro_batches;
    fsdp::StepInputs step;
  };
  /// Of step t, from 1. Behind its end the stream of samples begins again. Collective.
  Inputs inputs(std::int64_t t) const;

  struct Result {
    double loss = 0;  ///< global mean
    double grad_norm = 0;
    device::Fp8Counts fp8 = {};  ///< of this rank
  };
  Result step(std::int64_t t) { return step(inputs(t)); }
  Result step(const Inputs& inputs);
  fsdp::Engine& engine() const { return *engine_; }
  device::Device& device() { return options_.machine ? options_.machine->device : *device_; }
  std::int64_t observed() const { return observed_; }  ///< actions that ended

 private:
  void agree_on_documents(Inputs& inputs) const;

  comm::World& world_;
  const oracle::Fixture& fixture_;
  TrajectoryOptions options_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<device::Device> device_;
  std::int64_t global_batch_, slots_;  ///< sequences of a step, and of a micro-batch
  optim::LearningRateSchedule schedule_;
  std::unique_ptr<fsdp::Engine> engine_;
  std::int64_t observed_ = 0;
};

/// All steps of the fixture.
Trajectory run_trajectory(comm::World& world, const oracle::Fixture& fixture,
                          const TrajectoryOptions& options);

}  // namespace llampi::test
