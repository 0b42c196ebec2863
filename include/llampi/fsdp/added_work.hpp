// SPDX-License-Identifier: Apache-2.0
// What a step computes, and how much longer it takes where it saves memory: the costs by which options are decided.
#pragma once

#include <vector>

#include "llampi/fsdp/compiled_model.hpp"

namespace llampi::fsdp {

/// Of a link between a GPU and its host, in each direction: measured on one H100.
inline constexpr double kHostBytesPerSecond = 43e9;

/// Of a layer, whatever is counted.
struct PerPass {
  double forward = 0, backward = 0;
};
/// Floating-point operations of matrices (a multiplication and an addition are two) of each layer in a micro-batch, on one rank,
/// without attention. The backward pass has two products for each of the forward pass, one where the weight is frozen.
std::vector<PerPass> flops_of_layers(const model::Model& model, const EngineOptions& options,
                                     const CompiledModel& compiled);

/// Whether it is a layer's forward or backward pass, or a recomputation.
bool is_of_layer(const Action& action);
/// Of such an action, what `layers` have for it. The loss's backward pass is its forward pass too.
double of_action(const Action& action, const std::vector<PerPass>& layers);

/// Model FLOPs per token, as MFU counts them: forward and backward products, and causal attention (its half) three times its forward
/// pass. For a Llama without frozen weights 6 * (elements of its matrices, without the input embedding) + 6 * layers * (Hq D) * seq_len.
/// @param labels of a token, on average: the loss is computed only for those that have one
double flops_per_token(const model::Model& model, const EngineOptions& options, const CompiledModel& compiled,
                       double labels = 1);

/// Of the forward pass of a micro-batch, on one rank, with attention.
double forward_flops(const model::Model& model, const EngineOptions& options, const CompiledModel& compiled);

/// What a step takes longer where it saves memory and does not change the result: seconds of all micro-batches on one rank, if that is
/// an H100 (685 TFLOP/s, 3 TB/s).
struct AddedSeconds {
  double needed = 0;      ///< products of the step itself, without attention
  double recomputed = 0;  ///< products, at most
  double attention = 0;   ///< in blocks that are recomputed as a whole
  /// Reads and writes of the device's memory: by what is recomputed without products, and by copies of activations.
  double memory = 0;
  /// Layers wait for activations in host memory, and for parameters there, which are copied in parallel with them.
  double waiting = 0;

  double recomputed_part() const { return needed > 0 ? recomputed / needed : 0; }
  double waiting_part() const { return needed > 0 ? waiting / needed : 0; }
  double total() const { return recomputed + attention + memory + waiting; }
};
AddedSeconds added_seconds(const model::Model& model, const EngineOptions& options,
                           const CompiledModel& compiled);

/// How long a copy of so many bytes between GPU and host takes, and how much of the forward passes is left for more copies to the
/// host; below 0, those that there are take longer.
double seconds_of_host_copy(double bytes);
double spare_seconds_for_copies(const model::Model& model, const EngineOptions& options,
                                const CompiledModel& compiled);

/// What deterministic gradients of attention in pieces (device::attention_pieces()), or by native kernels where these have no
/// room, take longer than whole ones. By figures of an H100 (docs/benchmarks.md).
double seconds_of_pieces(const EngineOptions& options, const CompiledModel& compiled);

/// What a micro-batch more takes: gradients are read and written to be added to; where only shards
/// are, the others are written. Products hide some of it; communication is not counted.
double seconds_of_accumulation(const EngineOptions& options, const CompiledModel& compiled);

}  // namespace llampi::fsdp
