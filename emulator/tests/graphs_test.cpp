// SPDX-License-Identifier: Apache-2.0
// Capture into graphs: what is replayed, in which orders, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "emulator/tests/kernels_for_tests.hpp"

namespace llampi::emulator {
namespace {

constexpr std::size_t kElements = 40;
constexpr std::size_t kBytes = kElements * sizeof(float);

__global__ void multiply(const float* from, float* to, float factor) {
  to[threadIdx.x] = factor * from[threadIdx.x];
}

/// A stream to capture, another that joins, and memory.
class Graphs : public ::testing::Test {
 protected:
  Graphs() {
    for (cudaStream_t* stream : {&first_, &second_})
      check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "stream");
    for (cudaEvent_t* event : {&fork_, &join_})
      check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event");
    for (float** data : {&a_, &b_, &c_}) check(cudaMalloc(reinterpret_cast<void**>(data), kBytes), "malloc");
    for (float** data : {&in_, &out_})
      check(cudaHostAlloc(reinterpret_cast<void**>(data), kBytes, cudaHostAllocDefault), "malloc");
  }
  ~Graphs() override {
    set_stream_order(StreamOrder::eager);
    if (exec_ != nullptr) check(cudaGraphExecDestroy(exec_), "graph");
    for (float* data : {a_, b_, c_}) check(cudaFree(data), "free");
    for (float* data : {in_, out_}) check(cudaFreeHost(data), "free");
    for (const cudaEvent_t event : {fork_, join_}) check(cudaEventDestroy(event), "event");
    for (const cudaStream_t stream : {first_, second_}) check(cudaStreamDestroy(stream), "stream");
  }

  void begin() { check(cudaStreamBeginCapture(first_, cudaStreamCaptureModeThreadLocal), "capture"); }
  void fork() {
    check(cudaEventRecord(fork_, first_), "record");
    check(cudaStreamWaitEvent(second_, fork_), "wait");
  }
  void join() {
    check(cudaEventRecord(join_, second_), "record");
    check(cudaStreamWaitEvent(first_, join_), "wait");
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(first_, &graph);
    if (status != cudaSuccess) {
      EXPECT_EQ(graph, nullptr);
      return status;
    }
    check(cudaGraphInstantiate(&exec_, graph, cudaGraphInstantiateFlagUseNodePriority), "instantiate");
    check(cudaGraphDestroy(graph), "graph");
    return status;
  }

  /// What is in `in_` times 5 on the first stream, times 7 on the second, and back: in order, if the second
  /// waits for the first.
  void capture_two_streams(bool wait) {
    begin();
    if (!wait) fork();
    check(cudaMemcpyAsync(a_, in_, kBytes, cudaMemcpyHostToDevice, first_), "copy");
    launch(multiply, 1, kElements, 0, first_, a_, b_, 5);
    if (wait) fork();
    launch(multiply, 1, kElements, 0, second_, b_, c_, 7);
    check(cudaMemcpyAsync(out_, c_, kBytes, cudaMemcpyDeviceToHost, second_), "copy");
    join();
    EXPECT_EQ(end(), cudaSuccess);
  }
  /// Of `value`, with memory that held zeros.
  float replay(float value) {
    check(cudaMemsetAsync(b_, 0, kBytes, first_), "memset");
    std::fill(in_, in_ + kElements, value);
    check(cudaGraphLaunch(exec_, first_), "launch");
    check(cudaStreamSynchronize(first_), "synchronize");
    return out_[kElements - 1];
  }

  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  float *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *in_ = nullptr, *out_ = nullptr;
};

TEST_F(Graphs, NothingIsDoneWhileItIsCaptured) {
  std::fill(in_, in_ + kElements, 3.0F);
  capture_two_streams(true);
  check(cudaStreamSynchronize(first_), "synchronize");
  check(cudaStreamSynchronize(second_), "synchronize");
  EXPECT_TRUE(std::isnan(a_[0]) && std::isnan(c_[0]));
}

TEST_F(Graphs, AReplayReadsWhatIsThereThen) {
  for (const StreamOrder order : {StreamOrder::eager, StreamOrder::lazy, StreamOrder::random}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      set_stream_order(order, seed);
      capture_two_streams(true);
      for (const float value : {3.0F, 4.0F, 5.0F}) ASSERT_EQ(replay(value), 35 * value) << seed;
      check(cudaGraphExecDestroy(std::exchange(exec_, nullptr)), "graph");
    }
  }
}

TEST_F(Graphs, AMissingWaitShowsInReplays) {
  set_stream_order(StreamOrder::lazy);
  capture_two_streams(false);
  std::set<float> results;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    set_stream_order(StreamOrder::random, seed);
    results.insert(replay(3));
  }
  EXPECT_EQ(results, (std::set<float>{0, 105}));
}

TEST_F(Graphs, ComesAfterWhatIsInTheStreamAndBeforeWhatFollows) {
  set_stream_order(StreamOrder::lazy);
  capture_two_streams(true);
  std::fill(in_, in_ + kElements, 2.0F);
  for (int i = 0; i < 2; ++i) {
    check(cudaGraphLaunch(exec_, first_), "launch");
    check(cudaMemcpyAsync(in_, out_, kBytes, cudaMemcpyDefault, first_), "copy");
  }
  check(cudaStreamSynchronize(first_), "synchronize");
  EXPECT_EQ(in_[0], 2 * 35 * 35);
}

TEST_F(Graphs, AForkMustBeJoined) {
  begin();
  fork();
  launch(multiply, 1, kElements, 0, second_, b_, c_, 7);
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  begin();
  fork();
  join();
  launch(multiply, 1, kElements, 0, second_, b_, c_, 7);  // after it was joined
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  launch(multiply, 1, kElements, 0, second_, b_, c_, 7);  // and the stream is as it was
  EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
}

TEST_F(Graphs, WhatTheHostMayNotDo) {
  check(cudaEventRecord(join_, second_), "record");
  void* data = nullptr;
  float host = 0;
  const std::vector<std::function<cudaError_t()>> calls = {
      [&] { return cudaStreamSynchronize(first_); },
      [&] { return cudaStreamSynchronize(second_); },
      [&] { return cudaStreamQuery(first_); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaEventQuery(fork_); },
      [&] { return cudaEventSynchronize(join_); },
      [&] { return cudaMalloc(&data, 4); },
      [&] { return cudaHostAlloc(&data, 4, 0); },
      [&] { return cudaFree(a_); },
      [&] { return cudaMemcpy(a_, in_, 4, cudaMemcpyDefault); },
      [&] { return cudaMemcpyAsync(a_, &host, 4, cudaMemcpyHostToDevice, first_); }};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    begin();
    check(cudaEventRecord(fork_, first_), "record");
    EXPECT_EQ(calls[i](), cudaErrorStreamCaptureUnsupported) << i;
    EXPECT_THROW(launch(multiply, 1, kElements, 0, first_, a_, b_, 5), Error) << i;
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated) << i;
    cudaGetLastError();
  }
}

TEST_F(Graphs, EventsDoNotCrossTheBorder) {
  check(cudaEventRecord(join_, second_), "record");
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(first_, join_), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);

  begin();
  check(cudaEventRecord(fork_, first_), "record");
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(fork_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventSynchronize(fork_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamWaitEvent(second_, fork_), cudaErrorCapturedEvent);
  check(cudaEventRecord(fork_, first_), "record");  // recorded anew it is like any other
  EXPECT_EQ(cudaEventSynchronize(fork_), cudaSuccess);
  cudaGetLastError();
}

TEST_F(Graphs, OnlyTheStreamThatBeganEnds) {
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(first_, &graph), cudaErrorIllegalState);
  begin();
  fork();
  EXPECT_EQ(cudaStreamBeginCapture(second_, cudaStreamCaptureModeThreadLocal), cudaErrorIllegalState);
  EXPECT_EQ(cudaStreamEndCapture(second_, &graph), cudaErrorIllegalState);
  join();
  EXPECT_EQ(end(), cudaSuccess);
}

}  // namespace
}  // namespace llampi::emulator
