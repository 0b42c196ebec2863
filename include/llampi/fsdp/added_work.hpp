// SPDX-License-Identifier: Apache-2.0
// What a step computes, and how much longer it takes where it saves memory: the costs by which options are decided.
#pragma once

#include <vector>

#include "llampi/fsdp/compiled_model.hpp"

namespace llampi::fsdp {

/// Of a link between a GPU and its host, in each direction: measured on one H100.
inline constexpr double kHostBytesPerSecond = 43e9;

/// Floating-point operations of matrices (a multiplication and an addition are two) of each layer in a micro-batch, on one rank,
/// without attention. The backward pass has two products for each of the forward pass, one where the weight is frozen.
struct LayerFlops {
  double forward = 0, backward = 0;
};
std::vector<LayerFlops> flops_of_layers(const model::Model& model, const EngineOptions& options,
                                        const CompiledModel& compiled);

/// Whether it is a layer's forward or backward pass, or a recomputation.
bool is_of_layer(const Action& action);
/// Of such an action, what `layers` have for it. The loss's backward pass is its forward pass too.
double flops_of(const Action& action, const std::vector<LayerFlops>& layers);

/// Of the forward pass of a micro-batch, on one rank, with attention.
double forward_flops(const model::Model& model, const EngineOptions& options, const CompiledModel& compiled);

/// Additional work of a step that saves memory and does not change the result, in floating-point operations of matrices (a
/// multiplication and an addition are two), of all micro-batches on one rank. What takes time otherwise counts as the
/// floating-point operations that an H100 does meanwhile, 685 TFLOP/s.
struct AddedFlops {
  double needed = 0;      ///< of the step itself, without attention
  double recomputed = 0;  ///< of matrices, at most
  double attention = 0;   ///< of attention, in blocks that are recomputed as a whole
  /// Reads and writes of the device's memory: by what is recomputed without products, and by copies of activations. 3 TB/s.
  double memory = 0;
  /// The time that layers wait for activations in host memory, and for parameters there, which are copied in parallel with them.
  /// The link has 43 GB/s.
  double waiting = 0;

  double recomputed_part() const { return needed > 0 ? recomputed / needed : 0; }
  double waiting_part() const { return needed > 0 ? waiting / needed : 0; }
  double total() const { return recomputed + attention + memory + waiting; }
};
AddedFlops added_flops(const model::Model& model, const EngineOptions& options,
                       const CompiledModel& compiled);

/// As AddedFlops counts time: how long a copy of so many bytes between GPU and host takes, and how much of the forward passes is
/// left for more copies to the host; below 0, those that there are take longer.
double flops_of_host_copy(double bytes);
double spare_flops_for_copies(const model::Model& model, const EngineOptions& options,
                              const CompiledModel& compiled);

/// What deterministic gradients of attention in pieces (device::attention_pieces()), or by native kernels where these have no
/// room, take longer than whole ones: as AddedFlops counts time. By figures of an H100 (docs/benchmarks.md).
double flops_of_pieces(const EngineOptions& options, const CompiledModel& compiled);

/// What a micro-batch more takes, as AddedFlops counts time: gradients are read and written to be added to; where only shards
/// are, the others are written. Products hide some of it; communication is not counted.
double flops_of_accumulation(const EngineOptions& options, const CompiledModel& compiled);

}  // namespace llampi::fsdp
