// SPDX-License-Identifier: Apache-2.0
// The table of embeddings: gather, and its gradient.
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/sizes.hpp"
#include "device/cuda/vectors.cuh"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

/// A block has a token and kElementThreads vectors of its row (blockIdx.y). 4 H bytes a token in 16 bits,
/// read and written: 134 MB, 28 us for 8192 tokens of 4096 at 4.8 TB/s.
template <class T, int N>
__global__ void __launch_bounds__(kElementThreads)
    gather_kernel(const std::int32_t* tokens, const T* table, std::int64_t hidden, T* x) {
  const std::int64_t token = blockIdx.x;
  const std::int64_t column = (std::int64_t{blockIdx.y} * kElementThreads + threadIdx.x) * N;
  if (column >= hidden) return;
  store_vector(x + token * hidden + column, load_vector<N>(table + tokens[token] * hidden + column));
}

// The gradient. Tokens of equal id are listed side by side, in order: where a token stands in the list
// follows from comparing it with all others, T^2 comparisons. By count of instructions that is 16 us for T =
// 8192 and 4 ms for T = 131072, where a step takes thousands of times as long; and no sort, no atomics, no
// order that depends on timing. Then each row of the table that occurs is summed by threads of its own, in
// order of t.
//
// The first token of each id is the leader of its group.

struct Groups {
  std::int32_t* order;  ///< [T] tokens, group by group
  std::int32_t* begin;  ///< [T] where a leader's group begins in `order`
  std::int32_t* size;   ///< [T] of a leader's group; 0: not a leader
};

/// A warp has a token.
__global__ void __launch_bounds__(kElementThreads)
    group_kernel(const std::int32_t* tokens, int count, const Groups groups) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int t = static_cast<int>(blockIdx.x * (kElementThreads / 32) + threadIdx.x / 32);
  if (t >= count) return;  // a whole warp
  const std::int32_t id = tokens[t];
  int smaller = 0, before = 0, equal = 0;
#pragma unroll 4
  for (int other = lane; other < count; other += 32) {
    const std::int32_t other_id = tokens[other];
    smaller += other_id < id ? 1 : 0;
    equal += other_id == id ? 1 : 0;
    before += other_id == id && other < t ? 1 : 0;
  }
  smaller = __reduce_add_sync(0xFFFFFFFFU, smaller);
  before = __reduce_add_sync(0xFFFFFFFFU, before);
  equal = __reduce_add_sync(0xFFFFFFFFU, equal);
  if (lane != 0) return;
  groups.order[smaller + before] = t;
  groups.begin[t] = smaller;
  groups.size[t] = before == 0 ? equal : 0;
}

/// A block has a token and kElementThreads vectors of 4 columns (blockIdx.y); it sums the group if the token
/// is the leader. dx is read and the rows that occur are written: at most 6 H bytes a token, 201 MB, 42 us
/// for 8192 tokens of 4096; rows that are cleared before: 4 V H bytes, 2.1 GB, 440 us for V = 128256.
template <class T, class G, int N>
__global__ void __launch_bounds__(kElementThreads)
    sum_groups_kernel(const std::int32_t* tokens, const Groups groups, const T* dx, std::int64_t hidden,
                      bool accumulate, G* dtable) {
  constexpr int kRows = 8;  // under way at once
  const std::int64_t column = (std::int64_t{blockIdx.y} * kElementThreads + threadIdx.x) * N;
  const int size = groups.size[blockIdx.x];
  if (size == 0 || column >= hidden) return;
  const std::int32_t* rows = groups.order + groups.begin[blockIdx.x];
  G* to = dtable + tokens[blockIdx.x] * hidden + column;
  float sum[N] = {};
  if (accumulate) {
    const auto before = load_vector<N>(static_cast<const G*>(to));
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] = before[k];
  }
  std::int32_t row[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) row[i] = i < size ? rows[i] : 0;
  for (int first = 0; first < size; first += kRows) {
    Vector<T, N> x[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i < size) x[i] = load_vector<N>(dx + row[i] * hidden + column);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) row[i] = first + kRows + i < size ? rows[first + kRows + i] : 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += first + i < size ? x[i][k] : 0.0F;
    }
  }
  store_vector(to, Vector<G, N>::from(sum));
}

const std::int32_t* ids_of(const Tensor& tokens) {
  return elements_of<std::int32_t>(tokens, DType::int32, 1, tokens.cols, "tokens");
}

}  // namespace

void CudaDevice::execute(const op::Embedding& o) {
  const std::int64_t tokens = o.tokens.cols, hidden = o.table.cols;
  dispatch(o.table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = elements_of<T>(o.table, o.table.dtype, o.table.rows, hidden, "table");
    T* to = elements_of<T>(o.x, o.table.dtype, tokens, hidden, "x");
    with_width<kWidth<T>>(fits_vectors<T>(kWidth<T>, hidden, {from, to}), [&](auto n) {
      launch(gather_kernel<T, n()>, grid_of_rows(tokens, hidden, n()), dim3(kElementThreads), 0, compute(),
             ids_of(o.tokens), from, hidden, to);
    });
  });
}

void CudaDevice::execute(const op::EmbeddingBackward& o) {
  if (!o.dtable) return;
  const std::int64_t tokens = o.tokens.cols, hidden = o.dtable.cols;
  void* const dtable = weight_gradient_of(o.dtable, o.dx.dtype, o.dtable.rows, hidden, "dtable");
  require(workspace_.bytes() >= embedding_backward_bytes(tokens),
          "the workspace is too small for embedding_backward");
  auto* scratch = static_cast<std::int32_t*>(workspace_.data);
  const Groups groups{scratch, scratch + tokens, scratch + 2 * tokens};
  if (o.accumulate_dtable == Accumulate::no)
    check(cudaMemsetAsync(dtable, 0, static_cast<std::size_t>(o.dtable.bytes()), compute()),
          "cudaMemsetAsync");
  launch(group_kernel, dim3(static_cast<unsigned>(ceil_div(tokens, kElementThreads / 32))),
         dim3(kElementThreads), 0, compute(), ids_of(o.tokens), static_cast<int>(tokens), groups);
  dispatch(o.dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = elements_of<T>(o.dx, o.dx.dtype, tokens, hidden, "dx");
    const auto sum_into = [&](auto* to) {
      using G = std::remove_pointer_t<decltype(to)>;
      const bool fits = fits_vectors<T>(4, hidden, {from}) && fits_vectors<G>(4, hidden, {to});
      with_width<4>(fits, [&](auto n) {
        launch(sum_groups_kernel<T, G, n()>, grid_of_rows(tokens, hidden, n()), dim3(kElementThreads), 0,
               compute(), ids_of(o.tokens), groups, from, hidden, o.accumulate_dtable == Accumulate::yes, to);
      });
    };
    if (o.dtable.dtype == DType::float32) {
      sum_into(static_cast<float*>(dtable));
    } else {
      sum_into(static_cast<T*>(dtable));
    }
  });
}

}  // namespace llampi::device::cuda
