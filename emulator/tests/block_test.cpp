// SPDX-License-Identifier: Apache-2.0
// Kernels that are right, and kernels that are wrong in the ways that the emulator is there to find.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "emulator/tests/kernels_for_tests.hpp"

namespace llampi::emulator {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Words = std::vector<int>;

/// Each test with each order of the threads.
class Kernels : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  Kernels() { set_thread_order(GetParam(), 7); }
  ~Kernels() override { set_thread_order(ThreadOrder::forward); }
};
INSTANTIATE_TEST_SUITE_P(Orders, Kernels,
                         ::testing::Values(ThreadOrder::forward, ThreadOrder::backward, ThreadOrder::random));

__global__ void __launch_bounds__(256) sum_rows(const float* x, float* sums, int cols) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < cols; i += static_cast<int>(blockDim.x))
    sum += x[static_cast<int>(blockIdx.x) * cols + i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

TEST_P(Kernels, SumOfABlock) {
  const int rows = 5, cols = 1000;
  std::vector<float> x(static_cast<std::size_t>(rows * cols)), sums(rows, -1.0F);
  std::iota(x.begin(), x.end(), 0.0F);  // integers: the sums are exact
  for (const unsigned threads : {32U, 96U, 256U}) {
    launch(sum_rows, rows, threads, 0, nullptr, x.data(), sums.data(), cols);
    for (int row = 0; row < rows; ++row)
      EXPECT_EQ(sums[static_cast<std::size_t>(row)],
                static_cast<float>(cols * (row * cols) + cols * (cols - 1) / 2));
  }
}

/// Lane i holds row i of a 32 x 32 matrix; afterwards column i.
__global__ void transpose(int* matrix) {
  int row[32], column[32];
  const int lane = static_cast<int>(threadIdx.x);
  for (int j = 0; j < 32; ++j) row[j] = matrix[lane * 32 + j];
  for (int step = 0; step < 32; ++step) {
    const int from = (lane + step) % 32, asked_for_by = (lane + 32 - step) % 32;
    column[from] = __shfl_sync(0xffffffffU, row[asked_for_by], from);
  }
  for (int j = 0; j < 32; ++j) matrix[lane * 32 + j] = column[j];
}

TEST_P(Kernels, TransposeByShuffles) {
  Words matrix(32 * 32);
  std::iota(matrix.begin(), matrix.end(), 0);
  launch(transpose, 1, 32, 0, nullptr, matrix.data());
  for (int i = 0; i < 32; ++i) {
    for (int j = 0; j < 32; ++j) EXPECT_EQ(matrix[static_cast<std::size_t>(i * 32 + j)], j * 32 + i);
  }
}

__global__ void warp_operations(int* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned odd = __ballot_sync(0xffffffffU, lane % 2);
  const int up = __shfl_up_sync(0xffffffffU, lane, 3), down = __shfl_down_sync(0xffffffffU, lane, 3, 8);
  const int any = __any_sync(0xffffffffU, lane == 40) + 2 * __any_sync(0xffffffffU, lane == 31);
  const int sum = __reduce_add_sync(0xffffffffU, lane);
  const int many = __syncthreads_count(threadIdx.x >= 10);
  int* own = out + threadIdx.x * 6;
  own[0] = static_cast<int>(odd);
  own[1] = up, own[2] = down, own[3] = any, own[4] = sum, own[5] = many;
}

TEST_P(Kernels, OperationsOfWarps) {
  Words out(64 * 6);
  launch(warp_operations, 1, 64, 0, nullptr, out.data());
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32;
    const Words own(out.begin() + t * 6, out.begin() + t * 6 + 6);
    const int up = lane < 3 ? lane : lane - 3, down = lane % 8 + 3 < 8 ? lane + 3 : lane;
    EXPECT_EQ(own, Words({static_cast<int>(0xaaaaaaaaU), up, down, 2, 496, 54})) << t;
  }
}

__global__ void index_of_threads(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  atomicAdd(&out[block * blockDim.x * blockDim.y * blockDim.z + thread], static_cast<int>(thread));
}

TEST_P(Kernels, GridsAndBlocksOfThreeDimensions) {
  Words out(2 * 3 * 2 * 4 * 5 * 2, 1);
  launch(index_of_threads, dim3(2, 3, 2), dim3(4, 5, 2), 0, nullptr, out.data());
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], static_cast<int>(i % 40) + 1);
}

__global__ void reverse(int* values, int with_barrier) {
  int* shared = dynamic_shared<int>();
  shared[threadIdx.x] = values[threadIdx.x];
  if (with_barrier != 0) __syncthreads();
  values[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

// Without its barrier, the kernel reads what nobody has written yet: the NaN bytes of the start.
TEST_P(Kernels, ReverseThroughSharedMemory) {
  const std::size_t n = 96;
  Words values(n), expected(n);
  std::iota(values.begin(), values.end(), 0);
  std::iota(expected.rbegin(), expected.rend(), 0);
  Words broken = values;
  launch(reverse, 1, n, n * sizeof(int), nullptr, values.data(), 1);
  EXPECT_EQ(values, expected);
  launch(reverse, 1, n, n * sizeof(int), nullptr, broken.data(), 0);
  EXPECT_NE(broken, expected);
  EXPECT_THAT(broken, ::testing::Contains(-1));
}

__global__ void read_unwritten(float* out) {
  __shared__ float values[64];
  __shared__ __half halves[64];
  if (threadIdx.x % 2 == 0) values[threadIdx.x] = 0;
  if (threadIdx.x % 2 == 0) round_to(0, halves[threadIdx.x]);
  __syncthreads();
  out[threadIdx.x] = values[threadIdx.x] + to_float(halves[threadIdx.x]);
  values[threadIdx.x] = 1;
  round_to(1, halves[threadIdx.x]);
}

TEST_P(Kernels, SharedVariablesAreNotZeroAndNotKept) {
  std::vector<float> out(64);
  for (int turn = 0; turn < 2; ++turn) {
    launch(read_unwritten, 2, 64, 0, nullptr, out.data());
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(out[i]), i % 2 == 1) << i;
  }
}

constexpr int kMany = 4096;  // of several pages

/// Counts the values that are numbers before the block has written any, and writes one.
template <int kKernel>
__global__ void write_one_of_many(int* numbers, int where) {
  __shared__ float values[kMany];
  numbers[blockIdx.x] = 0;
  for (const float value : values) numbers[blockIdx.x] += std::isnan(value) ? 0 : 1;
  values[where * static_cast<int>(1 + blockIdx.x) % kMany] = kKernel;
}

TEST_P(Kernels, SharedVariablesOfManyPagesAreNotKept) {
  for (const int where : {0, 1, kMany / 2, kMany - 1}) {
    Words numbers(6, -1);
    launch(write_one_of_many<1>, 3, 1, 0, nullptr, numbers.data(), where);
    launch(write_one_of_many<2>, 3, 1, 0, nullptr, numbers.data() + 3, where);
    EXPECT_EQ(numbers, Words(6, 0)) << where;
  }
}

__global__ void store_somewhere(uint2* out, int where) {
  __shared__ uint2 shared;
  uint2* const places[] = {out, &shared, dynamic_shared<uint2>()};
  store_global(places[where], uint2{1, 2});
}

TEST(Stores, ToSharedMemoryAreErrors) {
  uint2 out{};
  launch(store_somewhere, 1, 1, sizeof out, nullptr, &out, 0);
  EXPECT_EQ(out.y, 2);
  for (const int shared : {1, 2}) {
    EXPECT_THAT([&] { launch(store_somewhere, 1, 1, sizeof out, nullptr, &out, shared); },
                ThrowsMessage<Error>(HasSubstr("store_global() to shared memory")));
  }
}

/// Two sums through the same variable, with no barrier between the reading of one and the writing of the
/// next.
__global__ void hurried_sums(int* out) {
  __shared__ int partial[4];
  for (int turn = 0; turn < 2; ++turn) {
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = 10 * turn;
    __syncthreads();
    int sum = 0;
    for (const int part : partial) sum += part;
    __syncwarp();
    out[threadIdx.x + turn * blockDim.x] = sum;
  }
}

TEST(ThreadOrders, AWarpCanGetAhead) {
  Words expected(256, 0), out(256);
  std::fill(expected.begin() + 128, expected.end(), 40);
  const auto run = [&](ThreadOrder order) {
    set_thread_order(order, 1);
    launch(hurried_sums, 1, 128, 0, nullptr, out.data());
    set_thread_order(ThreadOrder::forward);
    return out;
  };
  for (const auto order : {ThreadOrder::forward, ThreadOrder::backward, ThreadOrder::random})
    EXPECT_NE(run(order), expected);
}

/// Thread `odd_one` leaves before the barrier, or waits at another.
__global__ void lose_a_thread(unsigned odd_one, int other_barrier) {
  if (threadIdx.x == odd_one) {
    if (other_barrier != 0) __syncthreads();
    return;
  }
  __syncthreads();
}
__global__ void lose_a_lane(unsigned odd_one) {
  if (threadIdx.x != odd_one) __shfl_xor_sync(0xffffffffU, 1.0F, 1);
}
__global__ void lose_a_lane_to_a_barrier(unsigned odd_one) {
  if (threadIdx.x != odd_one) __syncwarp();
  __syncthreads();
}

TEST_P(Kernels, ThreadsThatWaitInVainAreFound) {
  for (const unsigned odd_one : {0U, 40U, 63U}) {
    EXPECT_THAT(
        [&] { launch(lose_a_thread, 2, 64, 0, nullptr, odd_one, 0); },
        ThrowsMessage<Error>(::testing::AllOf(HasSubstr("63 (first"), HasSubstr("wait at block_test.cpp"),
                                              HasSubstr("for the block; 1 of 64 have returned"))));
    EXPECT_THAT([&] { launch(lose_a_thread, 2, 64, 0, nullptr, odd_one, 1); },
                ThrowsMessage<Error>(HasSubstr("meets at block_test.cpp")));
    EXPECT_THAT([&] { launch(lose_a_lane, 2, 64, 0, nullptr, odd_one); },
                ThrowsMessage<Error>(HasSubstr("31 (first")));
    EXPECT_THAT([&] { launch(lose_a_lane_to_a_barrier, 2, 64, 0, nullptr, odd_one); },
                ThrowsMessage<Error>(HasSubstr("wait at block_test.cpp")));
  }
  Words values{1, 0};  // the emulator goes on
  launch(reverse, 1, 2, 2 * sizeof(int), nullptr, values.data(), 1);
  EXPECT_EQ(values, Words({0, 1}));
}

__global__ void shuffle_all() { __shfl_xor_sync(0xffffffffU, 1, 1); }
__global__ void shuffle_some() { __shfl_xor_sync(0x0000ffffU, 1, 1); }

TEST_P(Kernels, IncompleteWarpsAreFound) {
  EXPECT_THAT([] { launch(shuffle_all, 1, 48, 0, nullptr); }, ThrowsMessage<Error>(HasSubstr("has only 16")));
  EXPECT_THAT([] { launch(shuffle_some, 1, 32, 0, nullptr); },
              ThrowsMessage<Error>(HasSubstr("some lanes only")));
}

__global__ void write_shared(int bytes) {
  for (int i = 0; i < bytes; ++i) dynamic_shared<char>()[i] = 1;
}

TEST(Launches, LimitsOfAGpu) {
  const auto refused = [](dim3 grid, dim3 block, std::size_t shared) {
    EXPECT_THROW(launch(write_shared, grid, block, shared, nullptr, 0), Error);
  };
  refused(1, 1025, 0);
  refused(1, 0, 0);
  refused(0, 32, 0);
  refused(dim3(1, 65536), 32, 0);
  refused(1, dim3(1, 1, 65), 0);
  refused(1, 32, (48 << 10) + 1);
  launch(write_shared, 1, dim3(1024), 48 << 10, nullptr, 48 << 10);
  EXPECT_NE(cudaFuncSetAttribute(write_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) + 1),
            cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(write_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10),
            cudaSuccess);
  launch(write_shared, 1, 32, 100 << 10, nullptr, 100 << 10);
  refused(1, 32, (100 << 10) + 1);
}

TEST(Launches, WritesBehindSharedMemoryAreFound) {
  launch(write_shared, 1, 32, 100, nullptr, 100);
  EXPECT_THAT([] { launch(write_shared, 1, 32, 100, nullptr, 101); },
              ThrowsMessage<Error>(HasSubstr("behind its 100 bytes")));
  EXPECT_DEATH(launch(write_shared, 1, 32, 128, nullptr, 129), "");
}

TEST(Launches, DeviceFunctionsBelongIntoKernels) {
  EXPECT_THROW(__syncthreads(), Error);
  EXPECT_THROW(dynamic_shared<int>(), Error);
  EXPECT_THROW(warp_sum(1), Error);
}

template <class T>
__global__ void to_and_fro(const T* from, T* to) {
  round_to(2 * to_float(from[threadIdx.x]), to[threadIdx.x]);
}

template <class T>
void expect_twice() {
  std::vector<T> from(32), to(32);
  for (std::size_t i = 0; i < 32; ++i) round_to(static_cast<float>(i), from[i]);
  launch(to_and_fro<T>, 1, 32, 0, nullptr, from.data(), to.data());
  for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(to_float(to[i]), 2.0F * static_cast<float>(i));
}

TEST(Launches, EveryType) {
  expect_twice<float>();
  expect_twice<__nv_bfloat16>();
  expect_twice<__half>();
}

}  // namespace
}  // namespace llampi::emulator
