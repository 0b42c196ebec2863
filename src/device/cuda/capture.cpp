// SPDX-License-Identifier: Apache-2.0
// Capture of work into CUDA graphs, and names for profilers.
#if __has_include(<nvtx3/nvToolsExt.h>)  // some packages of CUDA leave it out
#include <nvtx3/nvToolsExt.h>
#define LLAMPI_NVTX
#endif

#include "device/cuda/cuda_device.hpp"

namespace llampi::device::cuda {
namespace {

/// Calls `work` with each stream that a capture joins to Stream::compute.
template <class Work>
void for_other_streams(const Work& work) {
  for (const Stream stream : kDeviceStreams) {
    if (stream != Stream::compute) work(stream);
  }
}

struct RecordingRelease {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using Recording = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, RecordingRelease>;
struct ExecutableRelease {
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
using Executable = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, ExecutableRelease>;

struct CapturedGraph final : Graph::Impl {
  explicit CapturedGraph(Recording of) : recording(std::move(of)) {
    check(cudaGraphGetNodes(recording.get(), nullptr, &count), "cudaGraphGetNodes");
  }
  std::int64_t nodes() const override { return static_cast<std::int64_t>(count); }

  Recording recording;  ///< until it is instantiated
  Executable executable;
  std::size_t count = 0;
};

}  // namespace

/// Thread-local: other threads (those of NCCL, a writer of checkpoints) may allocate meanwhile, while in this
/// one an allocation or a wait, which would be missing in the graph, is an error.
void CudaDevice::begin_capture() {
  check(cudaStreamBeginCapture(compute(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    const Event begin = record(Stream::compute);
    for_other_streams([&](Stream other) { wait(other, begin); });
  } catch (...) {
    drop_capture();
    throw;
  }
}

void CudaDevice::join_streams() {
  for_other_streams([&](Stream other) { wait(Stream::compute, record(other)); });
}

Graph CudaDevice::end_capture() {
  join_streams();
  cudaGraph_t recorded = nullptr;
  check(cudaStreamEndCapture(compute(), &recorded), "cudaStreamEndCapture");
  return Graph(std::make_unique<CapturedGraph>(Recording(recorded)));
}

/// A graph's kernels have the priorities of the streams that they were captured on. It is uploaded at once: memory that only its first
/// launch would ask for may be lacking, too.
bool CudaDevice::instantiate(Graph& graph) {
  auto& captured = static_cast<CapturedGraph&>(*graph.get());
  const auto has_memory = [](cudaError_t status, const char* call) {
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // or the next check would report it again
      return false;
    }
    check(status, call);
    return true;
  };
  cudaGraphExec_t created = nullptr;
  if (!has_memory(
          cudaGraphInstantiate(&created, captured.recording.get(), cudaGraphInstantiateFlagUseNodePriority),
          "cudaGraphInstantiate"))
    return false;
  Executable executable(created);
  if (!has_memory(cudaGraphUpload(executable.get(), compute()), "cudaGraphUpload")) return false;
  captured.executable = std::move(executable);
  captured.recording.reset();
  return true;
}

/// Whatever state the streams are in: afterwards none is captured.
void CudaDevice::drop_capture() noexcept {
  try {
    join_streams();
  } catch (...) {  // the capture is invalid, and ends all the same
  }
  cudaGraph_t recorded = nullptr;
  if (cudaStreamEndCapture(compute(), &recorded) == cudaSuccess) cudaGraphDestroy(recorded);
  cudaGetLastError();
}

void CudaDevice::replay(const Graph& graph) {
  const auto* const captured = static_cast<const CapturedGraph*>(graph.get());
  require(captured != nullptr && captured->executable, "a replay of a graph that is not instantiated");
  check(cudaGraphLaunch(captured->executable.get(), compute()), "cudaGraphLaunch");
}

#ifdef LLAMPI_NVTX
void CudaDevice::begin_range(const char* name) { nvtxRangePushA(name); }
void CudaDevice::end_range() { nvtxRangePop(); }
#else
void CudaDevice::begin_range(const char*) {}
void CudaDevice::end_range() {}
#endif

}  // namespace llampi::device::cuda
