// SPDX-License-Identifier: Apache-2.0
// Streams in every order that they allow: what waits is right in all of them, what does not is wrong in some.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "emulator/tests/kernels_for_tests.hpp"

namespace llampi::emulator {
namespace {

constexpr std::size_t kElements = 100;

__global__ void copy_pack(const float4* from, float4* to) { *to = *from; }

__global__ void multiply(const float* from, float* to, float factor) {
  to[threadIdx.x] = factor * from[threadIdx.x];
}

/// Two streams, an event, and memory.
class Streams : public ::testing::Test {
 protected:
  Streams() {
    check(cudaStreamCreateWithFlags(&first_, cudaStreamNonBlocking), "stream");
    check(cudaStreamCreateWithFlags(&second_, cudaStreamNonBlocking), "stream");
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event");
    for (float** data : {&a_, &b_, &c_})
      check(cudaMalloc(reinterpret_cast<void**>(data), kElements * sizeof(float)), "malloc");
  }
  ~Streams() override {
    for (float* data : {a_, b_, c_}) check(cudaFree(data), "free");
    check(cudaEventDestroy(event_), "event");
    for (const cudaStream_t stream : {first_, second_}) check(cudaStreamDestroy(stream), "stream");
    set_stream_order(StreamOrder::eager);
  }

  /// 3 goes to the device and is multiplied by 5 in one stream, then by 7 in the other: 105, if the second
  /// waits for the first. @returns the first result
  float in_two_streams(bool wait) {
    std::vector<float> host(kElements, 3.0F), back(kElements, -1.0F);
    check(cudaMemsetAsync(b_, 0, kElements * sizeof(float), first_), "memset");
    check(cudaStreamSynchronize(first_), "synchronize");
    check(cudaMemcpyAsync(a_, host.data(), kElements * sizeof(float), cudaMemcpyHostToDevice, first_),
          "copy");
    launch(multiply, 1, kElements, 0, first_, a_, b_, 5);
    check(cudaEventRecord(event_, first_), "record");
    if (wait) check(cudaStreamWaitEvent(second_, event_), "wait");
    launch(multiply, 1, kElements, 0, second_, b_, c_, 7);
    check(cudaMemcpyAsync(back.data(), c_, kElements * sizeof(float), cudaMemcpyDeviceToHost, second_),
          "copy");
    check(cudaStreamSynchronize(second_), "synchronize");
    check(cudaDeviceSynchronize(), "synchronize");
    return back[0];
  }

  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t event_ = nullptr;
  float *a_ = nullptr, *b_ = nullptr, *c_ = nullptr;
};

TEST_F(Streams, HostWaitsAreForUnfinishedWork) {
  const auto waits_of = [&](const auto& wait) {
    check(cudaMemsetAsync(a_, 0, kElements * sizeof(float), first_), "memset");
    check(cudaEventRecord(event_, first_), "record");
    take_host_waits();
    wait();
    const int first = take_host_waits();
    wait();
    EXPECT_EQ(take_host_waits(), 0) << "nothing was left to wait for";
    return first;
  };
  const auto poll = [](const auto& query) {
    while (query() == cudaErrorNotReady) {
    }
  };
  for (const StreamOrder order : {StreamOrder::eager, StreamOrder::lazy}) {
    set_stream_order(order);
    const int expected = order == StreamOrder::lazy ? 1 : 0;
    EXPECT_EQ(waits_of([&] { check(cudaStreamSynchronize(first_), "synchronize"); }), expected);
    EXPECT_EQ(waits_of([&] { check(cudaEventSynchronize(event_), "synchronize"); }), expected);
    EXPECT_EQ(waits_of([] { check(cudaDeviceSynchronize(), "synchronize"); }), expected);
    EXPECT_EQ(waits_of([&] { poll([&] { return cudaStreamQuery(first_); }); }), expected);
    EXPECT_EQ(waits_of([&] { poll([&] { return cudaEventQuery(event_); }); }), expected);
  }
}

TEST_F(Streams, WaitingIsRightInEveryOrder) {
  for (const StreamOrder order : {StreamOrder::eager, StreamOrder::lazy, StreamOrder::random}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      set_stream_order(order, seed);
      EXPECT_EQ(in_two_streams(true), 105) << seed;
    }
  }
}

TEST_F(Streams, AMissingWaitShows) {
  set_stream_order(StreamOrder::eager);
  EXPECT_EQ(in_two_streams(false), 105);  // luck
  set_stream_order(StreamOrder::lazy);
  EXPECT_EQ(in_two_streams(false), 0);  // the stale value
  std::set<float> results;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    set_stream_order(StreamOrder::random, seed);
    results.insert(in_two_streams(false));
  }
  EXPECT_EQ(results, (std::set<float>{0, 105}));
}

TEST_F(Streams, NothingIsDoneBeforeItMustBe) {
  set_stream_order(StreamOrder::lazy);
  float host = 3;
  check(cudaMemcpyAsync(a_, &host, sizeof(float), cudaMemcpyHostToDevice, first_), "copy");
  EXPECT_TRUE(std::isnan(*a_));
  host = 4;  // too early: the copy has not been made
  check(cudaStreamSynchronize(first_), "synchronize");
  EXPECT_EQ(*a_, 4);
}

TEST_F(Streams, PollsEnd) {
  for (const StreamOrder order : {StreamOrder::eager, StreamOrder::lazy, StreamOrder::random}) {
    set_stream_order(order, 3);
    const float host = 3;
    check(cudaMemcpyAsync(a_, &host, sizeof(float), cudaMemcpyHostToDevice, first_), "copy");
    check(cudaEventRecord(event_, first_), "record");
    int polls = 0;
    while (cudaEventQuery(event_) == cudaErrorNotReady) ASSERT_LT(++polls, 10);
    EXPECT_EQ(*a_, 3);
    EXPECT_GT(polls, order == StreamOrder::lazy ? 0 : -1);
  }
}

TEST_F(Streams, EventsHaveTheTimeAtWhichTheyAreReached) {
  set_stream_order(StreamOrder::lazy);
  cudaEvent_t begin = nullptr, end = nullptr;
  for (cudaEvent_t* event : {&begin, &end}) check(cudaEventCreate(event), "event");
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorInvalidResourceHandle) << "no point";
  check(cudaEventRecord(begin, first_), "record");
  check(cudaEventRecord(end, second_), "record");
  check(cudaEventSynchronize(begin), "synchronize");
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorNotReady);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  check(cudaEventSynchronize(end), "synchronize");
  check(cudaEventElapsedTime(&milliseconds, begin, end), "elapsed");
  EXPECT_GE(milliseconds, 2);
  check(cudaEventRecord(event_, first_), "record");
  check(cudaEventSynchronize(event_), "synchronize");
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, event_), cudaErrorInvalidResourceHandle) << "no time";
  for (const cudaEvent_t event : {begin, end}) check(cudaEventDestroy(event), "event");
}

TEST_F(Streams, WorkThatEnqueuesMoreIsDoneFirst) {
  // As messages between ranks do, for which the GPU looks again and again.
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    set_stream_order(StreamOrder::random, seed);
    bool first_done = false, default_done = false;
    enqueue(first_, [&] {
      for (int i = 0; i < 3; ++i) enqueue(nullptr, [] {});
      first_done = true;
    });
    wait_for(second_, mark(first_));
    enqueue(nullptr, [&] { default_done = true; });
    wait_for(second_, mark(nullptr));
    enqueue(first_, [&] { EXPECT_TRUE(first_done) << seed; });
    enqueue(second_, [&] { EXPECT_TRUE(first_done && default_done) << seed; });
    while (cudaStreamQuery(second_) == cudaErrorNotReady) {
    }
    check(cudaDeviceSynchronize(), "synchronize");
  }
}

TEST_F(Streams, EventsAreMarkedWhenRecorded) {
  set_stream_order(StreamOrder::lazy);
  const float host[2] = {3, 4};
  check(cudaStreamWaitEvent(second_, event_), "wait");  // not recorded: no wait
  check(cudaStreamSynchronize(second_), "synchronize");
  check(cudaMemcpyAsync(a_, &host[0], sizeof(float), cudaMemcpyHostToDevice, first_), "copy");
  check(cudaEventRecord(event_, first_), "record");
  check(cudaMemcpyAsync(a_, &host[1], sizeof(float), cudaMemcpyHostToDevice, first_), "copy");
  check(cudaEventSynchronize(event_), "synchronize");
  EXPECT_EQ(*a_, 3);
}

__global__ void fail() {
  if (threadIdx.x > 0) __syncthreads();
}

TEST_F(Streams, AFaultComesOutWhereTheWorkIsDone) {
  set_stream_order(StreamOrder::lazy);
  launch(fail, 1, 32, 0, first_);
  EXPECT_THROW(cudaStreamSynchronize(first_), Error);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
}

TEST_F(Streams, MemoryIsNotZeroAndHasAnEnd) {
  EXPECT_TRUE(std::isnan(a_[0]) && std::isnan(a_[kElements - 1]));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a_) % 256, 0);
  std::vector<float> host(kElements + 1);
  EXPECT_THROW(cudaMemcpyAsync(a_, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice, first_),
               Error);
  EXPECT_NE(cudaMemcpyAsync(a_, b_, 4, cudaMemcpyHostToDevice, first_), cudaSuccess);
  EXPECT_NE(cudaMemcpyAsync(host.data(), b_, 4, cudaMemcpyHostToDevice, first_), cudaSuccess);
  EXPECT_NE(cudaMemsetAsync(host.data(), 0, 4, first_), cudaSuccess);
  EXPECT_NE(cudaFree(host.data()), cudaSuccess);
  void* huge = nullptr;
  EXPECT_EQ(cudaMalloc(&huge, std::size_t{1} << 40), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Streams, KernelsCannotGoBeyondAnAllocation) {
  void* whole = nullptr;
  check(cudaMalloc(&whole, 128 * sizeof(float)), "malloc");
  auto* values = static_cast<float*>(whole);
  launch(multiply, 1, 128, 0, nullptr, values, values, 2);
  EXPECT_DEATH(launch(multiply, 1, 128, 0, nullptr, values + 1, values, 2),
               "thread \\(127, 0, 0\\) of block \\(0, 0, 0\\) touches byte 512 of an allocation of 512 bytes "
               "of device");
  check(cudaFree(whole), "free");
}

TEST_F(Streams, KernelsReadAndWriteAtAlignedAddresses) {
  const auto copy = [](float* from, float* to) {
    launch(copy_pack, 1, 1, 0, nullptr, reinterpret_cast<float4*>(from), reinterpret_cast<float4*>(to));
  };
  copy(a_ + 4, b_ + 8);
  EXPECT_DEATH(copy(a_ + 1, b_), "thread \\(0, 0, 0\\) .* not aligned");
  EXPECT_DEATH(copy(a_, b_ + 2), "thread \\(0, 0, 0\\) .* not aligned");
}

TEST_F(Streams, TheHostCannotReadDeviceMemory) {
  set_stream_order(StreamOrder::lazy);
  EXPECT_EQ(in_two_streams(true), 105);
  guard_device_memory(true);
  EXPECT_EQ(in_two_streams(true), 105);
  EXPECT_DEATH(std::exit(static_cast<int>(a_[0])),
               "host code touches byte 0 of an allocation of 400 bytes of device");
  guard_device_memory(false);
  EXPECT_EQ(a_[0], 3);
}

}  // namespace
}  // namespace llampi::emulator
