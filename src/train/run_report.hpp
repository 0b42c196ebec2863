// SPDX-License-Identifier: Apache-2.0
// What a run says of itself besides its steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "llampi/device/gpu_process.hpp"
#include "train/history.hpp"
#include "train/run_setup.hpp"

namespace llampi::train {

/// The largest resident memory that this process has had.
std::int64_t peak_resident_bytes();

class RunReport {
 public:
  /// The run outlives the report, and its engine is built.
  explicit RunReport(const RunSetup& run);

  /// Before the first step: model, data, ranks, device, strategy, planned memory and where the run writes.
  void describe(std::int64_t total_steps);
  /// What computes, where it is not what was said last: which kernels a GPU takes is known after the first
  /// step.
  void describe_device();
  /// After the first step: what was planned, what was used of it, and what there is besides. Collective.
  void describe_memory();

  /// After a step: says, once, that there is no room for the CUDA graph of one.
  void describe_graphs();

  /// For history.jsonl.
  JobStart job_start(std::int64_t step, std::int64_t total_steps) const;
  /// Of the engine's memory, by kind.
  std::map<std::string, std::int64_t> used_bytes() const;
  /// Of this rank: on its GPU now, or the largest resident memory that the process has had.
  std::int64_t memory_bytes() const;
  /// Of its GPU's memory, what this rank's process has; -1 where the driver does not say, 0 on CPUs.
  std::int64_t gpu_process_bytes();
  /// Share of the device's peak that the model's arithmetic takes; not a number where the peak is unknown.
  /// @param tokens_per_second of one rank @param labels of a token, on average
  double mfu(double tokens_per_second, double labels) const;

 private:
  std::string strategy_in_words() const;  ///< "hybrid_shard, 2 shard groups of 8 ranks each, 34 units"
  void describe_data(std::int64_t total_steps);
  void describe_plan();
  void describe_gpu_memory();

  const RunSetup& run_;
  double flops_without_labels_ = 0, flops_of_a_label_ = 0;  ///< of a token: fsdp::flops_per_token()
  std::string described_device_;
  bool has_described_graphs_ = false;
  std::unique_ptr<device::GpuProcessMemory> process_memory_;  ///< null on CPUs
};

}  // namespace llampi::train
