// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_device.hpp"
#include "device/execute_on.hpp"

namespace llampi::device::cuda {

/// Attention by cuDNN is all that is compiled at its first use.
void CudaDevice::prepare(const Operation& operation) {
  if (const auto* const forward = std::get_if<op::Attention>(&operation)) cudnn_supports(*forward);
  if (const auto* const backward = std::get_if<op::AttentionBackward>(&operation)) cudnn_supports(*backward);
}

void CudaDevice::issue(const Operation& operation) {
  execute_on(*this, operation);
  progress();
}

}  // namespace llampi::device::cuda
