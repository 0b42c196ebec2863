// SPDX-License-Identifier: Apache-2.0
// What a step computes, and how much longer it takes where it saves memory: the costs by which options are decided.
#pragma once

#include "llampi/fsdp/compiled_model.hpp"

namespace llampi::fsdp {

/// Of a link between a GPU and its host, in each direction: measured on one H100.
inline constexpr double kHostBytesPerSecond = 43e9;

/// Floating-point operations of matrices (a multiplication and an addition are two) of a layer's forward pass over so many tokens,
/// on one rank. Attention is left out.
double forward_flops(const model::Model& model, const CompiledModel& compiled, int layer, double tokens);

/// Additional work of a step that saves memory and does not change the result, in floating-point operations of matrices (a
/// multiplication and an addition are two), of all micro-batches on one rank. What takes time otherwise counts as the
/// floating-point operations that an H100 does meanwhile, 685 TFLOP/s.
struct AddedFlops {
  double needed = 0;      ///< of the step itself, without attention: forward, and twice as many backward
  double recomputed = 0;  ///< of matrices, at most
  double attention = 0;   ///< of attention, in blocks that are recomputed as a whole
  /// Reads and writes of the device's memory: by what is recomputed without products, and by copies of residuals. 3 TB/s.
  double memory = 0;
  /// The time that computation waits for residuals (Offload), which are copied in parallel with it. The link has 43 GB/s.
  double waiting = 0;

  double recomputed_part() const { return needed > 0 ? recomputed / needed : 0; }
  double waiting_part() const { return needed > 0 ? waiting / needed : 0; }
  double total() const { return recomputed + attention + memory + waiting; }
};
AddedFlops added_flops(const model::Model& model, const EngineOptions& options,
                       const CompiledModel& compiled);

/// What deterministic gradients of attention in pieces (device::attention_pieces()), or by native kernels where these have no
/// room, take longer than whole ones: as AddedFlops counts time. By figures of an H100 (docs/benchmarks.md).
double flops_of_pieces(const EngineOptions& options, const CompiledModel& compiled);

/// What a micro-batch more takes, as AddedFlops counts time: gradients are read and written to be added to; where only shards
/// are, the others are written. Products hide some of it; communication is not counted.
double flops_of_accumulation(const EngineOptions& options, const CompiledModel& compiled);

}  // namespace llampi::fsdp
