// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_device.hpp"
#include "device/execute_on.hpp"

namespace llampi::device::cuda {

/// Attention by cuDNN is all that is compiled at its first use.
void CudaDevice::issue(const Operation& operation) {
  execute_on(*this, operation);
  progress();
}

}  // namespace llampi::device::cuda
