// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_device.hpp"

#include "device/execute_on.hpp"

namespace llampi::device {

CpuDevice::CpuDevice(int threads, const Kernels& kernels)
    : threads_(threads), kernels_(kernels), sizes_(threads), gemm_(threads) {}

std::string CpuDevice::describe() const {
  return fmt::format("cpu: {} kernels, {}, {} {}", kernels_.name, gemm_.describe(), threads_,
                     threads_ == 1 ? "thread" : "threads");
}

void CpuDevice::issue(const Operation& operation) {
  execute_on(*this, operation);
  progress();
}

void* workspace_of(const Tensor& workspace, std::int64_t bytes) {
  require(workspace.bytes() >= bytes, "workspace smaller than OperationSizes says");
  require(reinterpret_cast<std::uintptr_t>(workspace.data) % alignof(double) == 0, "workspace not aligned");
  return workspace.data;
}

std::unique_ptr<Device> make_cpu_device(int threads) {
  require(threads >= 1, "a device needs a thread");
  return std::make_unique<CpuDevice>(threads, *available_kernels().front());
}

}  // namespace llampi::device
