// SPDX-License-Identifier: Apache-2.0
// The numbers of an EagerRunner in host memory. All memory that a layer must not rely on is NaN.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "llampi/device/device.hpp"
#include "llampi/model/eager_runner.hpp"

namespace llampi::test {

class ModelRunner {
 public:
  /// A device that works in host memory, with float64 or float32 as `compute`.
  ModelRunner(const model::Model& model, device::Device& device, model::BatchShape shape, DType compute)
      : model_(model), runner_(model, device, shape, compute, model::Unwritten::nan) {}

  void set_parameter(int parameter, std::int64_t element, double value) {
    const Tensor tensor = runner_.parameter(static_cast<std::size_t>(parameter));
    if (tensor.dtype == DType::float64) {
      tensor.as<double>()[element] = value;
    } else {
      tensor.as<float>()[element] = static_cast<float>(value);
    }
  }
  double parameter(int parameter, std::int64_t element) const {
    return read(runner_.parameter(static_cast<std::size_t>(parameter)), element);
  }
  void set_parameters(const std::function<double(const model::Parameter&, std::int64_t element)>& value) {
    const auto& parameters = model_.parameters();
    for (int p = 0; p < static_cast<int>(parameters.size()); ++p) {
      const model::Parameter& parameter = parameters[static_cast<std::size_t>(p)];
      for (std::int64_t i = 0; i < parameter.elements(); ++i) set_parameter(p, i, value(parameter, i));
    }
  }

  /// Sum of the token losses, without gradients.
  double loss_sum(const device::HostBatch& batch) { return runner_.forward(batch); }
  /// Logits of one token of the batch.
  std::vector<double> logits(const device::HostBatch& batch, std::int64_t row) {
    return values(runner_.logits(batch, row));
  }
  /// Sum of the token losses; gradients of that sum times inverse_tokens, which replace those of the last
  /// call or are added.
  double backward(const device::HostBatch& batch, double inverse_tokens,
                  Accumulate accumulate = Accumulate::no, bool recomputes = false) {
    return runner_.forward_and_backward(batch, inverse_tokens, accumulate, recomputes);
  }
  /// The gradient of a parameter as of the last backward().
  std::vector<double> gradient(int parameter) const {
    return values(runner_.gradient(static_cast<std::size_t>(parameter)));
  }

 private:
  static double read(Tensor tensor, std::int64_t element) {
    if (tensor.dtype == DType::float64) return tensor.as<double>()[element];
    return static_cast<double>(tensor.as<float>()[element]);
  }
  static std::vector<double> values(Tensor tensor) {
    std::vector<double> result;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) result.push_back(read(tensor, i));
    return result;
  }

  const model::Model& model_;
  model::EagerRunner runner_;
};

}  // namespace llampi::test
