// SPDX-License-Identifier: Apache-2.0
#include "llampi/device/gpu_process.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <vector>

namespace llampi::device {
namespace {

constexpr const char* kFile = "libnvidia-ml.so.1";  ///< comes with NVIDIA's driver

// As NVML's documentation has them ("NVML API Reference", process queries, version 3).
constexpr int kSuccess = 0, kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
static_assert(sizeof(ProcessInfo) == 24);

using Call = int();
using GetHandle = int(const char* bus_id, void** gpu);
using GetProcesses = int(void* gpu, unsigned int* count, ProcessInfo* processes);

}  // namespace

/// NVML, initialized, and a GPU's handle.
struct GpuProcessMemory::Library {
  void* file = nullptr;
  Call* shut_down = nullptr;
  GetProcesses* get_processes = nullptr;
  void* gpu = nullptr;

  ~Library() {
    if (shut_down != nullptr) shut_down();
    if (file != nullptr) dlclose(file);
  }

  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(file, name));
  }

  bool open(const std::string& bus_id) {
    file = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) return false;
    auto* const initialize = find<Call>("nvmlInit_v2");
    auto* const get_handle = find<GetHandle>("nvmlDeviceGetHandleByPciBusId_v2");
    get_processes = find<GetProcesses>("nvmlDeviceGetComputeRunningProcesses_v3");
    if (initialize == nullptr || get_handle == nullptr || get_processes == nullptr) return false;
    if (initialize() != kSuccess) return false;
    shut_down = find<Call>("nvmlShutdown");
    return get_handle(bus_id.c_str(), &gpu) == kSuccess;
  }

  /// Of all programs that compute on the GPU; empty if NVML does not say.
  std::vector<ProcessInfo> processes() const {
    std::vector<ProcessInfo> list(16);
    for (int attempt = 0; attempt < 4; ++attempt) {  // others may start meanwhile
      auto count = static_cast<unsigned int>(list.size());
      const int status = get_processes(gpu, &count, list.data());
      if (status == kSuccess) {
        list.resize(count);
        return list;
      }
      if (status != kInsufficientSize) break;
      list.resize(2 * std::size_t{count} + 16);
    }
    return {};
  }
};

GpuProcessMemory::GpuProcessMemory(const std::string& bus_id) : library_(std::make_unique<Library>()) {
  if (!library_->open(bus_id)) library_.reset();
}

GpuProcessMemory::~GpuProcessMemory() = default;

std::optional<std::int64_t> GpuProcessMemory::bytes(std::int64_t in_use, std::int64_t at_least) {
  if (!library_ || in_use == last_in_use_) return last_;
  last_in_use_ = in_use;
  last_.reset();
  const auto processes = library_->processes();
  for (const auto& process : processes) {
    const bool own = processes.size() == 1 || process.pid == static_cast<unsigned int>(getpid());
    if (!own || process.used_bytes == kNotAvailable) continue;
    const auto bytes = static_cast<std::int64_t>(process.used_bytes);
    if (bytes >= at_least) last_ = bytes;
  }
  return last_;
}

}  // namespace llampi::device
