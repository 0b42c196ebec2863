// SPDX-License-Identifier: Apache-2.0
// The shortest engine that can run a Model: no units, no schedule, one buffer for everything. For tests of
// the stages.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "llampi/device/host_batch.hpp"
#include "llampi/model/model.hpp"

namespace llampi::model {

/// All memory that a stage must not rely on (outputs, saved tensors, scratch, gradients to be overwritten) is
/// filled with NaN before each use.
class ModelRunner {
 public:
  /// A device that works in host memory, with float64 or float32 as `compute`.
  ModelRunner(const Model& model, device::Device& device, BatchShape shape, DType compute);

  void set_parameter(int parameter, std::int64_t element, double value);
  double parameter(int parameter, std::int64_t element) const;
  void set_parameters(const std::function<double(const Parameter&, std::int64_t element)>& value);

  /// Sum of the token losses, without gradients.
  double loss_sum(const device::HostBatch& batch);
  /// Logits of one token of the batch.
  std::vector<double> logits(const device::HostBatch& batch, std::int64_t row);
  /// Sum of the token losses; gradients of that sum times inverse_tokens, which replace those of the last
  /// call or are added.
  double backward(const device::HostBatch& batch, double inverse_tokens,
                  device::Accumulate accumulate = device::Accumulate::no);
  /// The gradient of a parameter as of the last backward().
  std::vector<double> gradient(int parameter) const;

 private:
  struct Buffer {
    device::Memory memory;
    Tensor tensor;
  };
  Buffer make(const BufferSpec& spec);
  std::vector<Tensor> make_parameters(device::Memory& memory);
  void upload(const device::HostBatch& batch);
  /// Context of a stage; the vectors it points to are members.
  StageContext context(std::size_t stage, std::span<const BufferSpec> scratch);
  void forward(std::size_t stages);

  const Model& model_;
  device::Device& device_;
  BatchShape shape_;
  DType compute_;
  std::vector<StageSpec> specs_;
  device::Memory parameter_memory_, gradient_memory_;
  std::vector<Tensor> parameters_, gradients_;
  std::vector<Buffer> outputs_;
  std::vector<std::vector<Buffer>> saved_;
  std::vector<Buffer> constants_;
  Buffer residual_gradient_;
  device::Memory scalars_;
  Buffer host_batch_;
  device::Batch batch_;

  // Of the stage that runs.
  std::vector<Tensor> stage_parameters_, stage_gradients_, stage_saved_, stage_scratch_, stage_constants_;
  std::vector<Buffer> scratch_;
  std::vector<device::Accumulate> stage_accumulate_;
};

}  // namespace llampi::model
