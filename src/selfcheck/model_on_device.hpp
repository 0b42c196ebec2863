// SPDX-License-Identifier: Apache-2.0
// A model's stages on one device, one at a time, with everything in buffers of their own: for comparing
// devices.
#pragma once

#include <vector>

#include "llampi/device/device.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/model/model.hpp"

namespace llampi::selfcheck {

using Numbers = std::vector<double>;

/// Each number as `dtype` has it, rounded to nearest even.
Numbers rounded(Numbers numbers, DType dtype);
void upload_numbers(device::Device& device, const Numbers& numbers, Tensor target);
Numbers download_numbers(device::Device& device, Tensor source);
/// ||values - judged|| / ||judged||, or ||values|| where the judged ones are all zero; NaN if any is.
double distance(const Numbers& values, const Numbers& judged);

class ModelOnDevice {
 public:
  /// All must outlive it. Takes the device's shared workspace.
  ModelOnDevice(const model::Model& model, device::Device& device, model::BatchShape shape, DType compute);

  void upload(const device::HostBatch& batch, const device::StepScalars& scalars);
  /// The last stage's adds to the loss.
  void forward(std::size_t stage);
  void recompute(std::size_t stage);
  /// From residual_gradient() to itself; gradients of parameters are overwritten or added to.
  void backward(std::size_t stage, device::Accumulate accumulate);
  device::StepScalars scalars();

  device::Device& device() { return device_; }
  const model::StageSpec& spec(std::size_t stage) const { return specs_[stage]; }
  Tensor parameter(std::size_t index) const { return parameters_[index]; }
  Tensor gradient(std::size_t index) const { return gradients_[index]; }
  Tensor output(std::size_t stage) const { return outputs_[stage]; }
  Tensor saved(std::size_t stage, std::size_t item) const { return saved_[stage][item]; }
  Tensor residual_gradient() const { return residual_gradient_; }
  DType gradient_dtype() const { return model::statistics_dtype(compute_); }
  Tensor make(DType dtype, std::int64_t rows, std::int64_t cols);

 private:
  Tensor make(const model::BufferSpec& spec) { return make(spec.dtype, spec.rows, spec.cols); }
  std::vector<Tensor> make_parameters(DType dtype);
  struct Operands;
  Operands operands(std::size_t stage, const std::vector<model::BufferSpec>& scratch);
  model::StageContext context(std::size_t stage, const Operands& operands);

  const model::Model& model_;
  device::Device& device_;
  model::BatchShape shape_;
  DType compute_;
  std::vector<device::Memory> memory_;
  std::vector<model::StageSpec> specs_;
  std::vector<Tensor> parameters_, gradients_, outputs_, constants_;
  std::vector<std::vector<Tensor>> saved_;
  Tensor residual_gradient_, scalars_, host_batch_;
  device::Batch batch_;
};

}  // namespace llampi::selfcheck
