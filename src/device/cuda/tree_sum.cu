// SPDX-License-Identifier: Apache-2.0
// Sums over ranks, in the order of a binary tree, whoever forms them. Reads every part once, `sum` where it is added to, and
// writes `sum`: for 8 ranks that reduce bfloat16 to a float32 shard of 10^8 elements, which is added to, 24 bytes an element,
// 0.72 ms at 3.35 TB/s.
#include <algorithm>
#include <type_traits>

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/vectors.cuh"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

constexpr std::int64_t kSumBlocks = 2048;  // enough to fill any GPU
constexpr int kMostSums = 65535;           // rows of a grid
/// Of a tree over up to 65,535 ranks. Where their number is none of those below, each level takes 16 to 32 bytes of a thread's
/// stack, for which the driver sets memory aside on the whole GPU.
constexpr int kMostLevels = 16;

template <class From>
struct Parts {
  const From *own, *others;
  std::int64_t stride, own_step, others_step;
  int rank, ranks;

  __device__ const From* of(int r) const {
    return r == rank ? own : others + (r < rank ? r : r - 1) * stride;
  }
};

template <int N>
__device__ void add_left(const float (&left)[N], float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = left[i] + x[i];
}

/// The N elements from `at` on. The tree grows as a binary counter does: partial[k] is the sum of 2^k ranks, where that bit of
/// the number of ranks so far is set. kRanks: their number, with which all of it is in registers; 0: any.
template <int kRanks, int N, class From>
__device__ void sum_ranks(const Parts<From>& parts, std::int64_t at, float (&sum)[N]) {
  constexpr int kLevels = kRanks == 0 ? kMostLevels : 5;
  const int ranks = kRanks == 0 ? parts.ranks : kRanks;
  float partial[kLevels][N];
#pragma unroll
  for (int r = 0; r < ranks; ++r) {
    const auto part = load_vector<N>(parts.of(r) + at);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = part[i];
    int level = 0;
#pragma unroll
    for (int full = r; full % 2 == 1; full /= 2) add_left(partial[level++], sum);
#pragma unroll
    for (int i = 0; i < N; ++i) partial[level][i] = sum[i];
  }
  // What is left, from the smallest on: the rest of the ranks is the right part of a tree, of which partial[level] is the left.
  bool first = true;
#pragma unroll
  for (int level = 0; level < kLevels; ++level) {
    if ((ranks >> level) % 2 == 0) continue;
    if (!first) {
      add_left(partial[level], sum);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] = partial[level][i];
    }
    first = false;
  }
}

template <int kRanks, int N, class From, class To>
__device__ void sum_vector(const Parts<From>& parts, To* to, bool adds, std::int64_t at) {
  float sum[N];
  sum_ranks<kRanks, N>(parts, at, sum);
  if (adds) {
    const auto before = load_vector<N>(to + at);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = before[i] + sum[i];
  }
  store_vector(to + at, Vector<To, N>::from(sum));
}

/// `vectors` of 16 bytes of every part, then the elements that are left. A row of blocks for each sum.
template <int kRanks, class From, class To>
__global__ void sum_in_tree(Parts<From> parts, To* to, bool adds, std::int64_t vectors,
                            std::int64_t elements) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * kElementThreads;
  parts.own += blockIdx.y * parts.own_step;
  parts.others += blockIdx.y * parts.others_step;
  to += blockIdx.y * parts.own_step;
  for (std::int64_t v = first; v < vectors; v += stride)
    sum_vector<kRanks, kWidth<From>>(parts, to, adds, v * kWidth<From>);
  for (std::int64_t i = vectors * kWidth<From> + first; i < elements; i += stride)
    sum_vector<kRanks, 1>(parts, to, adds, i);
}

template <class From, class To>
bool are_aligned(const Parts<From>& parts, const To* to) {
  const auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  const bool fits = (address(parts.own) | address(parts.others)) % 16 == 0 &&
                    parts.stride % kWidth<From> == 0 && parts.own_step % kWidth<From> == 0 &&
                    parts.others_step % kWidth<From> == 0;
  return fits && address(to) % (kWidth<From> * sizeof(To)) == 0;
}

template <class From, class To>
void launch_sum(const RankParts& given, const Tensor& sum, Accumulate accumulate, cudaStream_t stream) {
  require(given.ranks >> kMostLevels == 0, "a sum over more than 65,535 ranks");
  const Parts<From> parts{static_cast<const From*>(given.own.data),
                          static_cast<const From*>(given.others),
                          given.stride,
                          given.own_step,
                          given.others_step,
                          given.rank,
                          given.ranks};
  auto* const to = static_cast<To*>(sum.data);
  const std::int64_t elements = sum.elements();
  const bool aligned = are_aligned(parts, to);
  const std::int64_t vectors = aligned ? elements / kWidth<From> : 0;
  const std::int64_t work = aligned ? ceil_div(elements, kWidth<From>) : elements;
  const auto sums = static_cast<unsigned>(given.sums);
  const std::int64_t most = std::max<std::int64_t>(kSumBlocks / given.sums, 1);
  const auto blocks = static_cast<unsigned>(std::min(ceil_div(work, kElementThreads), most));
  const auto launch_for = [&](auto ranks) {
    launch(sum_in_tree<decltype(ranks)::value, From, To>, dim3(blocks, sums), dim3(kElementThreads), 0,
           stream, parts, to, accumulate == Accumulate::yes, vectors, elements);
  };
  switch (given.ranks) {
    case 2:
      return launch_for(std::integral_constant<int, 2>());
    case 4:
      return launch_for(std::integral_constant<int, 4>());
    case 8:
      return launch_for(std::integral_constant<int, 8>());
    case 16:
      return launch_for(std::integral_constant<int, 16>());
    default:
      launch_for(std::integral_constant<int, 0>());
  }
}

}  // namespace

void CudaDevice::sum_parts(const RankParts& parts, Tensor sum, Accumulate accumulate, Stream on) {
  const cudaStream_t stream = this->stream(on);
  const DType dtype = parts.own.dtype;
  require(parts.own.elements() == sum.elements(), "sum over ranks of tensors of unlike sizes");
  require(sum.dtype == dtype || sum.dtype == DType::float32,
          "sum over ranks to a dtype that is neither float32 nor theirs");
  require(parts.sums >= 1 && parts.sums <= kMostSums, "a number of sums over ranks that no grid has");
  if (sum.elements() == 0) return;
  dispatch(dtype, [&](auto from) {
    using From = typename decltype(from)::type;
    if (sum.dtype == dtype) return launch_sum<From, From>(parts, sum, accumulate, stream);
    launch_sum<From, float>(parts, sum, accumulate, stream);
  });
}

}  // namespace llampi::device::cuda
