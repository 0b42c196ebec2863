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

class CapturedGraph final : public Graph::Impl {
 public:
  explicit CapturedGraph(cudaGraphExec_t graph) : graph_(graph) {}
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph() override { cudaGraphExecDestroy(graph_); }
  cudaGraphExec_t get() const { return graph_; }

 private:
  cudaGraphExec_t graph_;
};

struct GraphRelease {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using Recording = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, GraphRelease>;

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

/// A graph's kernels have the priorities of the streams that they were captured on.
Graph CudaDevice::end_capture() {
  join_streams();
  cudaGraph_t recorded = nullptr;
  check(cudaStreamEndCapture(compute(), &recorded), "cudaStreamEndCapture");
  const Recording recording(recorded);
  cudaGraphExec_t graph = nullptr;
  const cudaError_t status =
      cudaGraphInstantiate(&graph, recording.get(), cudaGraphInstantiateFlagUseNodePriority);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();       // or the next check would report it again
    throw Error(fmt::format(  // of this rank alone
        "out of memory: GPU {} has none left for the graph of a captured step; do without "
        "it (cuda_graph = off), use more ranks, or a smaller model or batch",
        options_.gpu));
  }
  check(status, "cudaGraphInstantiate");
  return Graph(std::make_unique<CapturedGraph>(graph));
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
  require(graph.get() != nullptr, "a replay of no graph");
  check(cudaGraphLaunch(static_cast<const CapturedGraph*>(graph.get())->get(), compute()), "cudaGraphLaunch");
}

#ifdef LLAMPI_NVTX
void CudaDevice::begin_range(const char* name) { nvtxRangePushA(name); }
void CudaDevice::end_range() { nvtxRangePop(); }
#else
void CudaDevice::begin_range(const char*) {}
void CudaDevice::end_range() {}
#endif

}  // namespace llampi::device::cuda
