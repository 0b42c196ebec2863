// SPDX-License-Identifier: Apache-2.0
// The shortest way to run a model: one layer after another on one device, with everything in memory of its
// own. No units, no ranks, no schedule. For comparing devices, and for tests of the layers.
#pragma once

#include <cstdint>
#include <vector>

#include "llampi/device/device.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/model/model.hpp"

namespace llampi::model {

/// What memory holds that a layer must not rely on: outputs, saved tensors, scratch, gradients to be
/// overwritten.
enum class Unwritten : std::uint8_t {
  anything,
  nan,  ///< before each use, on devices whose memory is the host's
};

/// Runs a model layer by layer. Of one with adapters, only the gradients of these are computed.
class EagerRunner {
 public:
  /// All must outlive it. Parameters and gradients are zero at first; gradients are float32 (float64 if
  /// `compute` is). Takes the device's shared workspace. @throws Error if the device has no memory left
  EagerRunner(const Model& model, device::Device& device, BatchShape shape, DType compute,
              Unwritten unwritten = Unwritten::anything);

  // ---- whole passes; they return the sum of the token losses ----
  double forward(const device::HostBatch& batch);
  /// The gradients are those of the sum times inverse_tokens; they are overwritten or added to.
  /// @param recomputes LayerContext::recomputes, of all layers that have something to recompute
  double forward_and_backward(const device::HostBatch& batch, double inverse_tokens, Accumulate accumulate,
                              bool recomputes = false);
  /// Of one token of the batch: [1, V] in the dtype that is computed in, until the next call.
  Tensor logits(const device::HostBatch& batch, std::int64_t row);

  // ---- one layer at a time; each has run when the call returns ----
  /// The batch of what follows. Starts a sum of losses. Weights in 8 bits are cast: parameters are set before.
  void upload(const device::HostBatch& batch, double inverse_tokens);
  /// Of the token losses since upload().
  double loss_sum();
  /// The last layer's adds to the loss.
  void forward(std::size_t layer);
  /// From residual_gradient() to itself; the gradients of the layer's parameters are overwritten or added to.
  /// @param recomputes LayerContext::recomputes
  void backward(std::size_t layer, Accumulate accumulate, bool recomputes = false);

  device::Device& device() const { return device_; }
  const LayerSpec& spec(std::size_t layer) const { return specs_[layer]; }
  /// By their index in Model::parameters().
  Tensor parameter(std::size_t index) const { return parameters_[index]; }
  Tensor gradient(std::size_t index) const { return gradients_[index]; }
  Tensor output(std::size_t layer) const { return outputs_[layer]; }
  Tensor saved(std::size_t layer, std::size_t item) const { return saved_[layer][item]; }
  Tensor residual_gradient() const { return residual_gradient_; }
  DType gradient_dtype() const { return statistics_dtype(compute_); }
  /// Additional memory that lives as long as the runner: zeros.
  Tensor make(DType dtype, std::int64_t rows, std::int64_t cols);

 private:
  struct Operands;
  struct CastWeight {
    Tensor weight;  ///< of its parameters
    Tensor values, transposed, scale, transposed_scale, maxima;
    bool in_blocks;
  };
  Tensor make(const BufferSpec& spec) { return make(spec.dtype, spec.rows, spec.cols); }
  std::vector<Tensor> make_parameters(DType dtype);
  void make_constants();
  void make_fp8_weights();
  void cast_fp8_weights();
  void cast_blocks(const CastWeight& cast);
  Operands operands(std::size_t layer, const std::vector<BufferSpec>& scratch);
  LayerContext context(std::size_t layer, const Operands& operands);
  void backward(std::size_t layer, Operands& operands, bool recomputes);
  void spoil(Tensor tensor) const;

  const Model& model_;
  device::Device& device_;
  BatchShape shape_;
  DType compute_;
  Unwritten unwritten_;
  std::vector<device::Memory> memory_;
  std::vector<LayerSpec> specs_;
  std::vector<Tensor> read_parameters_;  ///< as layers are given them: weights in 8 bits as they are cast
  std::vector<Tensor> parameters_, gradients_, outputs_, constants_;
  std::vector<std::vector<Tensor>> saved_;
  std::vector<std::vector<CastWeight>> fp8_weights_;  // per layer
  Tensor residual_gradient_, gradient_maximum_, loss_scalars_, host_batch_, logits_;
  device::Batch batch_;
};

}  // namespace llampi::model
