// What a run says of itself besides its steps.
#pragma once

#include <cstdint>
#include <string>

#include "llampi/comm/comm.hpp"
#include "llampi/core/log.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/train/config.hpp"
#include "train/compute.hpp"
#include "train/inputs.hpp"

namespace llampi {

class RunReport {
 public:
  /// All of it outlives the report.
  RunReport(World& world, const Config& config, const Inputs& inputs, const Compute& compute,
            const Engine& engine, const Log& log)
      : world_(world), config_(config), inputs_(inputs), compute_(compute), engine_(engine), log_(log) {}

  /// Before the first step: model, ranks, sharding, planned memory, data.
  void describe(std::int64_t total_steps);
  /// What computes, where it is not what was said last: which kernels a GPU takes is known after the first
  /// step.
  void describe_device();
  /// After the first step: what was planned, what was used of it, and what there is besides. Collective.
  void describe_memory() const;

  /// Of this rank: on its GPU now, or the largest resident memory that the process has had.
  std::int64_t memory_bytes() const;
  /// Share of the device's peak that the model's arithmetic takes; not a number where the peak is unknown.
  /// @param tokens_per_second of one rank
  double mfu(double tokens_per_second) const;

 private:
  void describe_gpu_memory() const;

  World& world_;
  const Config& config_;
  const Inputs& inputs_;
  const Compute& compute_;
  const Engine& engine_;
  const Log& log_;
  std::string described_device_;
};

}  // namespace llampi
