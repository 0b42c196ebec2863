// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_device.hpp"

namespace llampi::device {

CpuDevice::CpuDevice(int threads, const Kernels& kernels)
    : threads_(threads), kernels_(kernels), sizes_(threads), gemm_(threads) {}

std::string CpuDevice::describe() const {
  return fmt::format("cpu: {} kernels, {}, {} {}", kernels_.name, gemm_.describe(), threads_,
                     threads_ == 1 ? "thread" : "threads");
}

std::int64_t CpuDevice::attention_workspace(AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                            DType dtype) const {
  return sizes_.attention_workspace(shape, tokens, longest, dtype);
}
std::int64_t CpuDevice::attention_backward_workspace(AttentionShape shape, std::int64_t tokens,
                                                     std::int64_t longest, DType dtype) const {
  return sizes_.attention_backward_workspace(shape, tokens, longest, dtype);
}
std::int64_t CpuDevice::rms_norm_backward_workspace(std::int64_t tokens, std::int64_t hidden,
                                                    DType dtype) const {
  return sizes_.rms_norm_backward_workspace(tokens, hidden, dtype);
}
std::int64_t CpuDevice::head_loss_workspace(std::int64_t tokens, std::int64_t hidden, std::int64_t vocabulary,
                                            DType dtype) const {
  return sizes_.head_loss_workspace(tokens, hidden, vocabulary, dtype);
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
