// SPDX-License-Identifier: Apache-2.0
// NVML of a GPU whose processes the test names: FAKE_NVML="PID:BYTES ..." ("self" for this process).
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace {

struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
int gpu = 0;

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** handle) {
  *handle = &gpu;
  return std::strcmp(bus_id, "0000:00:00.0") == 0 ? 0 : 6;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned int* count, ProcessInfo* processes) {
  const char* const list = std::getenv("FAKE_NVML");
  if (handle != &gpu || list == nullptr) return 3;
  std::istringstream words(list);
  unsigned int there = 0;
  for (std::string word; words >> word; ++there) {
    const auto colon = word.find(':');
    const std::string pid = word.substr(0, colon);
    if (there < *count) {
      processes[there] = {
          pid == "self" ? static_cast<unsigned int>(getpid()) : static_cast<unsigned int>(std::stoul(pid)),
          std::stoull(word.substr(colon + 1)), 0, 0};
    }
  }
  const bool enough = there <= *count;
  *count = there;
  return enough ? 0 : 7;
}

}  // extern "C"
