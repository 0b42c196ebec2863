// SPDX-License-Identifier: Apache-2.0
// Capture and graphs in the emulated CUDA runtime.
//
// A launch puts what was recorded into streams of the graph's own, one for each that was captured: the order
// of each and the waits between them are all that holds, in whatever order streams are worked off.
#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>

#include "emulator/capture.hpp"
#include "emulator/control.hpp"
#include "emulator/streams.hpp"
#include "llampi/core/error.hpp"

using namespace llampi::emulator;

namespace {
std::size_t most_nodes = std::numeric_limits<std::size_t>::max();
GraphCall limited_call = GraphCall::instantiate;

/// Kernels and copies.
std::size_t nodes_of(const Capture::Recorded& recorded) {
  return static_cast<std::size_t>(
      std::ranges::count_if(recorded, [](const auto& task) { return bool(task.second.work); }));
}

cudaError_t room_for(const Capture::Recorded& recorded, GraphCall call) {
  return call == limited_call && nodes_of(recorded) > most_nodes ? cudaErrorMemoryAllocation : cudaSuccess;
}
}  // namespace

void llampi::emulator::limit_graphs(std::size_t nodes, GraphCall call) {
  most_nodes = nodes;
  limited_call = call;
}

struct CUgraph_st {
  Capture::Recorded recorded;
};

struct CUgraphExec_st {
  Capture::Recorded recorded;
  std::map<CUstream_st*, std::unique_ptr<CUstream_st>> streams;  ///< by the one that was captured

  explicit CUgraphExec_st(Capture::Recorded of) : recorded(std::move(of)) {
    for (const auto& [stream, task] : recorded) {
      auto& own = streams[stream];
      if (own) continue;
      own = std::make_unique<CUstream_st>();
      add_stream(own.get());
    }
  }
  CUgraphExec_st(const CUgraphExec_st&) = delete;
  CUgraphExec_st& operator=(const CUgraphExec_st&) = delete;
  ~CUgraphExec_st() {
    for (const auto& [captured, own] : streams) run_stream(own.get());
    for (const auto& [captured, own] : streams) remove_stream(own.get());
  }

  void launch(cudaStream_t stream) {
    std::map<Point*, std::shared_ptr<Point>> points;  ///< of this launch, by that of the capture
    const auto begin = mark(stream);
    for (const auto& [captured, own] : streams) wait_for(own.get(), begin);
    for (const auto& [captured, task] : recorded) {
      CUstream_st* const own = streams.at(captured).get();
      Task again{task.work, {}, {}, task.after_what};
      if (task.after) again.after = points.at(task.after.get());
      if (task.reaches) again.reaches = points[task.reaches.get()] = std::make_shared<Point>(own);
      push(own, std::move(again));
    }
    for (const auto& [captured, own] : streams) wait_for(stream, mark(own.get()));
  }
};

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  llampi::require(mode == cudaStreamCaptureModeThreadLocal, "a mode of capture that is not emulated");
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  return Capture::begin(*stream);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  auto captured = std::make_unique<CUgraph_st>();
  const cudaError_t status = Capture::end(*stream, captured->recorded);
  if (status == cudaSuccess) *graph = captured.release();
  return status;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  llampi::require(nodes == nullptr, "the nodes of a graph are counted here, and not listed");
  *count = nodes_of(graph->recorded);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const cudaError_t status = room_for(graph->recorded, GraphCall::instantiate);
  if (status == cudaSuccess) *exec = std::make_unique<CUgraphExec_st>(graph->recorded).release();
  return status;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
  return room_for(exec->recorded, GraphCall::upload);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const std::unique_ptr<CUgraph_st> owned(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const std::unique_ptr<CUgraphExec_st> owned(exec);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  llampi::require(stream == nullptr || !stream->capture, "graphs in graphs are not emulated");
  exec->launch(stream);
  return cudaSuccess;
}

}  // extern "C"
