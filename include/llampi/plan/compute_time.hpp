// SPDX-License-Identifier: Apache-2.0
// How long a rank computes: what each operation of a step takes of a machine, counted without running it.
//
// Layers issue their operations to a device that only counts. An operation counts as a few amounts (Term): floating-point
// operations of matrix products, those of attention, bytes of memory. A machine has a cost for each of them (machine.hpp), and
// the time is their product, so that costs can be fitted to measured times by linear least squares (calibration.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "llampi/core/tensor.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/device/operations.hpp"
#include "llampi/fsdp/compiled_model.hpp"

namespace llampi::plan {

/// What an operation takes. Flops are floating-point operations: a multiplication and an addition are two. The terms with `edge` make
/// rates fall at small shapes: a product [M, K] x [K, N] counts flops x (1/M + 1/N + 1/K), attention flops / (length of documents).
/// A rate r with an edge e is so r / (1 + e (1/M + 1/N + 1/K)), for attention r / (1 + e / length): half of r where the
/// length is e.
enum class Term : std::uint8_t {
  product_float32,
  product_float32_edge,
  product_half,  ///< operands of 16 bits
  product_half_edge,
  product_fp8,
  product_fp8_edge,
  attention_forward,
  attention_forward_edge,
  attention_any_order,  ///< backward, GPUs without run.deterministic
  attention_any_order_edge,
  attention_any_order_head_edge,  ///< flops / head_dim: what is done once for each score
  attention_deterministic,        ///< backward by cuDNN, which keeps dP
  attention_deterministic_edge,
  attention_deterministic_head_edge,
  attention_deterministic_piece,  ///< flops x (pieces - 1) / length: where there is no room for dP of all heads
  attention_native,               ///< backward by native kernels
  attention_native_edge,
  memory_bytes,  ///< read and written by layers' memory-bound kernels
  array_bytes,   ///< likewise by passes over parameters and gradients: casts, sums, gradient norm, update
  kernels,       ///< a fixed time for each operation
  host_memory_bytes,  ///< read and written by the optimizer on the host, if that is not what computes
};
inline constexpr int kTerms = 21;

/// A number for each term: amounts, or the seconds that one takes.
struct Terms {
  std::array<double, kTerms> values{};

  double& operator[](Term term) { return values[static_cast<std::size_t>(term)]; }
  double operator[](Term term) const { return values[static_cast<std::size_t>(term)]; }
  Terms& operator+=(const Terms& other);
};
double seconds_of(const Terms& amounts, const Terms& costs);

/// Which kernels compute the backward pass of attention.
enum class AttentionKernels : std::uint8_t {
  native,         ///< the program's own: all CPUs, GPUs with run.attention = native
  deterministic,  ///< cuDNN's where dP has room, otherwise the program's own
  any_order,      ///< cuDNN's, with run.deterministic = false
};
/// @param attention,deterministic run.attention and run.deterministic
AttentionKernels attention_kernels(comm::Backend backend, device::GpuAttention attention, bool deterministic);

/// Amounts of one operation. Only shapes and dtypes of its operands count.
Terms amounts_of(const device::Operation& operation, AttentionKernels attention);

/// What a step's action computes: of collectives only the sums that this program forms itself (comm::Reduction::tree on GPUs),
/// and nothing of copies between host and device.
struct ActionWork {
  Terms amounts;
  bool recomputes = false;    ///< the forward pass of a layer once more
  bool optimizes = false;     ///< gradient norm and update
  bool communicates = false;  ///< sums of what other ranks send: a part of the collective
};

/// Of each action of the compiled step.
/// @param options, mesh, sizes, backend those that `compiled` was compiled with
std::vector<ActionWork> work_of_step(const model::Model& model, const fsdp::EngineOptions& options,
                                     const fsdp::DeviceMesh& mesh, const fsdp::CompiledModel& compiled,
                                     const device::OperationSizes& sizes, comm::Backend backend,
                                     AttentionKernels attention);

/// Seconds of a step by kind of work, of one rank, however much of it is at the same time.
struct ComputeParts {
  double products = 0;
  double attention = 0;
  double memory = 0;   ///< norms, activation functions, rotations, loss, casts: memory-bound kernels, in the
                       ///< backward pass also what these recompute
  double kernels = 0;  ///< the fixed time of each operation
  double recomputed = 0;      ///< forward passes of layers once more, with all of the above
  double optimizer = 0;       ///< gradient norm and update
  double host_optimizer = 0;  ///< update on the host, while the device waits for it or computes

  /// Of the device.
  double sum() const { return products + attention + memory + kernels + recomputed + optimizer; }
};
ComputeParts parts_of(const std::vector<ActionWork>& work, const Terms& costs);

}  // namespace llampi::plan
