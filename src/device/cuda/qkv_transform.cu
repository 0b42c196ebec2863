// SPDX-License-Identifier: Apache-2.0
// What some models have between the product of q, k and v and RoPE, op::QkvTransform, together with RoPE: rows are read and
// written once. A warp has a head, whose weights it keeps in registers, and takes the tokens of its slice one by one;
// backwards it sums the gradient of these weights over them.
#include <algorithm>

#include "device/cuda/column_sums.cuh"
#include "device/cuda/elementwise.hpp"
#include "device/cuda/magnitudes.cuh"
#include "device/cuda/rotate.cuh"
#include "device/cuda/sizes.hpp"
#include "device/qkv_checks.hpp"

namespace llampi::device::cuda {
namespace {

constexpr int kLanePairs = 4;                      ///< that a lane has of a head
constexpr int kMostTransformed = 64 * kLanePairs;  ///< elements of a head
constexpr int kBlockHeads = static_cast<int>(kTransformWarps);
constexpr int kTransformThreads = 32 * kBlockHeads;

/// The lane's pairs (first[j], second[j + D/2]) of D elements: N neighbours, then those 32 N further on.
struct HeadPairs {
  float first[kLanePairs], second[kLanePairs];

  template <int N>
  static __device__ int column(int n) {
    return (static_cast<int>(threadIdx.x % 32) + 32 * n) * N;
  }
  template <int N, class T>
  __device__ void load(const T* from, int half) {
#pragma unroll
    for (int n = 0; n < kLanePairs / N; ++n) {
      const int j = column<N>(n);
      const auto a = j < half ? load_vector<N>(from + j) : Vector<T, N>{};
      const auto b = j < half ? load_vector<N>(from + half + j) : Vector<T, N>{};
#pragma unroll
      for (int i = 0; i < N; ++i) {
        first[n * N + i] = a[i];
        second[n * N + i] = b[i];
      }
    }
  }
  /// Returns the largest magnitude of what is stored.
  template <int N, class T>
  __device__ std::int32_t store(T* to, int half) const {
    std::int32_t largest = 0;
#pragma unroll
    for (int n = 0; n < kLanePairs / N; ++n) {
      const int j = column<N>(n);
      if (j >= half) continue;
      float a[N], b[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        a[i] = first[n * N + i];
        b[i] = second[n * N + i];
      }
      const auto stored_a = Vector<T, N>::from(a), stored_b = Vector<T, N>::from(b);
      store_vector(to + j, stored_a);
      store_vector(to + half + j, stored_b);
      largest = max(largest, max(magnitude_of(stored_a), magnitude_of(stored_b)));
    }
    return largest;
  }

  /// To shared memory: the columns that load<N>() reads.
  template <int N>
  __device__ void share(float* to, int half) const {
#pragma unroll
    for (int n = 0; n < kLanePairs / N; ++n) {
      const int j = column<N>(n);
      if (j >= half) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        to[j + i] = first[n * N + i];
        to[half + j + i] = second[n * N + i];
      }
    }
  }

  /// work(element, its place in `first` or `second`) for all elements.
  template <class Work>
  __device__ void each(const Work& work) {
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      work(first[i], i, false);
      work(second[i], i, true);
    }
  }
  __device__ float of(int i, bool is_second) const { return is_second ? second[i] : first[i]; }
};

/// Passed to kernels by value. Weights are a bias, or of the norms of queries and of keys.
template <class T>
struct TransformProblem {
  const std::int32_t* positions = nullptr;
  const float* rope = nullptr;
  int tokens = 0, half = 0;
  int query_heads = 0, rotated_heads = 0, heads = 0;  ///< queries; and keys; and values
  const T *weight = nullptr, *key_weight = nullptr;
  float eps = 0;
  std::int32_t* maximum = nullptr;

  __device__ std::int64_t offset(int token, int head) const {
    return (std::int64_t{token} * heads + head) * 2 * half;
  }
  __device__ const T* norm_of(int head) const { return head < query_heads ? weight : key_weight; }

  template <int N>
  __device__ void rotate_head(int token, float direction, HeadPairs& pairs) const {
    HeadPairs angles;
    angles.load<N>(rope + std::int64_t{positions[token]} * 2 * half, half);
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i)
      rotate(pairs.first[i], pairs.second[i], angles.first[i], angles.second[i] * direction);
  }
};

/// The head of the calling warp, which may be none.
__device__ inline int head_of_warp() { return static_cast<int>(blockIdx.y * kBlockHeads + threadIdx.x / 32); }

/// @param from qkv itself, or the product that norms read
template <class T, int N, bool kNorms>
__global__ void __launch_bounds__(kTransformThreads)
    qkv_transform_kernel(TransformProblem<T> p, const T* from, T* qkv, float* inverse_rms) {
  const int head = head_of_warp();
  const bool rotates = head < p.rotated_heads;
  std::int32_t largest = 0;
  if (head < p.heads) {
    HeadPairs weight{}, x;
    if (!kNorms) {
      weight.load<N>(p.weight + p.offset(0, head), p.half);
    } else if (rotates) {
      weight.load<N>(p.norm_of(head), p.half);
    }
    for (int token = static_cast<int>(blockIdx.x); token < p.tokens; token += static_cast<int>(gridDim.x)) {
      x.load<N>(from + p.offset(token, head), p.half);
      if (!kNorms) {
        x.each([&](float& element, int i, bool second) { element += weight.of(i, second); });
      } else if (rotates) {
        float squares = 0;
        x.each([&](float& element, int, bool) { squares = fmaf(element, element, squares); });
        const float r = inverse_root(warp_sum(squares) / static_cast<float>(2 * p.half) + p.eps);
        if (threadIdx.x % 32 == 0) inverse_rms[std::int64_t{token} * p.rotated_heads + head] = r;
        x.each([&](float& element, int i, bool second) { element *= r * weight.of(i, second); });
      }
      if (rotates) p.template rotate_head<N>(token, 1.0F, x);
      largest = max(largest, x.template store<N>(qkv + p.offset(token, head), p.half));
    }
  }
  if (p.maximum != nullptr) raise_maximum(largest, p.maximum);
}

/// dqkv is rotated back; norms: and becomes the gradient of the product, as in rms_norm_backward_kernel.
/// @param partial the sums of the weights' gradients, unless it is null: of a bias [slices, Hq D + 2 Hkv D];
/// of norms, of each block [2, D]: of its query heads, of its key heads
template <class T, int N, bool kNorms>
__global__ void __launch_bounds__(kTransformThreads)
    qkv_transform_backward_kernel(TransformProblem<T> p, const T* product, const float* inverse_rms, T* dqkv,
                                  float* partial) {
  const int head = head_of_warp();
  const bool rotates = head < p.rotated_heads;
  std::int32_t largest = 0;
  HeadPairs sums{};
  if (head < p.heads) {
    HeadPairs weight{}, x, gradient;
    if (kNorms && rotates) weight.load<N>(p.norm_of(head), p.half);
    for (int token = static_cast<int>(blockIdx.x); token < p.tokens; token += static_cast<int>(gridDim.x)) {
      gradient.load<N>(dqkv + p.offset(token, head), p.half);
      if (rotates) p.template rotate_head<N>(token, -1.0F, gradient);
      if (!kNorms) {
        sums.each([&](float& sum, int i, bool second) { sum += gradient.of(i, second); });
      } else if (rotates) {
        x.load<N>(product + p.offset(token, head), p.half);
        const float r = inverse_rms[std::int64_t{token} * p.rotated_heads + head];
        float sum = 0;
        sums.each([&](float& of_weight, int i, bool second) {
          const float dy_x = gradient.of(i, second) * x.of(i, second);
          sum = fmaf(dy_x, weight.of(i, second), sum);
          of_weight = fmaf(dy_x, r, of_weight);
        });
        const float coefficient = -r * r * r * warp_sum(sum) / static_cast<float>(2 * p.half);
        gradient.each([&](float& dy, int i, bool second) {
          dy = fmaf(x.of(i, second), coefficient, dy * weight.of(i, second) * r);
        });
      }
      largest = max(largest, gradient.template store<N>(dqkv + p.offset(token, head), p.half));
    }
  }
  if (p.maximum != nullptr) raise_maximum(largest, p.maximum);
  if (partial == nullptr) return;
  if (!kNorms) {
    if (head < p.heads) sums.store<N>(partial + p.offset(static_cast<int>(blockIdx.x), head), p.half);
    return;
  }
  __shared__ float of_heads[kBlockHeads][kMostTransformed];
  sums.share<N>(of_heads[threadIdx.x / 32], p.half);
  __syncthreads();
  const int dim = 2 * p.half;
  float* const of_block = partial + (std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * 2 * dim;
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kTransformThreads) {
    float queries = 0, keys = 0;
    for (int warp = 0; warp < kBlockHeads; ++warp) {
      const int of_warp = static_cast<int>(blockIdx.y) * kBlockHeads + warp;
      (of_warp < p.query_heads ? queries : keys) += of_heads[warp][d];  // zeros of warps without a norm
    }
    of_block[d] = queries;
    of_block[dim + d] = keys;
  }
}

/// What the two directions have in common, after a check of each operand.
template <class T>
TransformProblem<T> transform_problem(const op::Rope& o) {
  const AttentionShape& shape = o.shape;
  const op::QkvTransform& transform = o.transform;
  const std::int64_t tokens = o.positions.cols;
  TransformProblem<T> problem;
  problem.positions = elements_of<std::int32_t>(o.positions, DType::int32, 1, tokens, "positions");
  problem.rope = elements_of<float>(o.rope, DType::float32, o.rope.rows, shape.head_dim, "rope");
  problem.tokens = static_cast<int>(tokens);
  problem.half = static_cast<int>(shape.head_dim / 2);
  problem.query_heads = static_cast<int>(shape.query_heads);
  problem.rotated_heads = static_cast<int>(shape.query_heads + shape.key_value_heads);
  problem.heads = static_cast<int>(shape.query_heads + 2 * shape.key_value_heads);
  if (transform.bias) {
    problem.weight = elements_of<T>(transform.bias, o.qkv.dtype, 1, shape.qkv_cols(), "bias");
  } else {
    problem.weight = elements_of<T>(transform.q_norm, o.qkv.dtype, 1, shape.head_dim, "q_norm");
    problem.key_weight = elements_of<T>(transform.k_norm, o.qkv.dtype, 1, shape.head_dim, "k_norm");
  }
  problem.eps = static_cast<float>(transform.eps);
  problem.maximum = optional_maximum(o.maximum);
  return problem;
}

/// What only norms have; null with a bias.
template <class T>
struct NormOperands {
  explicit NormOperands(const op::Rope& o) {
    if (!o.transform.has_norms()) return;
    const std::int64_t tokens = o.positions.cols, heads = o.shape.query_heads + o.shape.key_value_heads;
    product = elements_of<T>(o.transform.product, o.qkv.dtype, tokens, o.shape.qkv_cols(), "product");
    inverse_rms = elements_of<float>(o.transform.inverse_rms, DType::float32, tokens, heads, "inverse_rms");
  }
  const T* product = nullptr;
  float* inverse_rms = nullptr;
};

/// The sums over the blocks of the backward kernel.
void sum_gradients(const op::Rope& o, const TransformGrid& grid, const float* partial, cudaStream_t stream) {
  const op::QkvTransformGradients& gradients = o.dtransform;
  const std::int64_t dim = o.shape.head_dim, cols = o.shape.qkv_cols(), blocks = grid.slices * grid.heads;
  if (o.transform.bias) {
    sum_columns(partial, grid.slices, cols, gradients.bias, gradients.accumulate_bias, stream);
    return;
  }
  sum_columns(partial, blocks, 2 * dim, gradients.q_norm, gradients.accumulate_q_norm, stream);
  sum_columns(partial + dim, blocks, 2 * dim, gradients.k_norm, gradients.accumulate_k_norm, stream);
}

/// Scratch memory for the gradients of weights, null if none is asked for.
float* gradient_sums(const op::Rope& o) {
  const op::QkvTransformGradients& gradients = o.dtransform;
  const std::int64_t dim = o.shape.head_dim, cols = o.shape.qkv_cols();
  bool any = false;
  if (o.transform.bias) any = weight_gradient_of(gradients.bias, o.qkv.dtype, 1, cols, "dbias") != nullptr;
  if (o.transform.has_norms()) {
    const void* const dq = weight_gradient_of(gradients.q_norm, o.qkv.dtype, 1, dim, "dq_norm");
    const void* const dk = weight_gradient_of(gradients.k_norm, o.qkv.dtype, 1, dim, "dk_norm");
    any = dq != nullptr || dk != nullptr;
  }
  if (!any) return nullptr;
  require(gradients.workspace.bytes() >= qkv_transform_backward_bytes(o.shape, o.positions.cols),
          "workspace smaller than asked for");
  return static_cast<float*>(gradients.workspace.data);
}

}  // namespace

void apply_qkv_transform(const op::Rope& o, cudaStream_t stream) {
  check_qkv_transform(o.transform);
  if (o.shape.head_dim > kMostTransformed) {
    throw Error(
        fmt::format("the GPU has no bias or norms for heads of more than {} elements, but these have {}",
                    kMostTransformed, o.shape.head_dim));
  }
  const std::int64_t tokens = o.positions.cols;
  if (tokens == 0) return;
  const TransformGrid grid = qkv_transform_grid(o.shape, tokens);
  // Forwards nothing is summed over a slice: shorter ones, which keep all of the GPU busy until the end.
  const std::int64_t slices = o.backward ? grid.slices : std::min(tokens, 4 * grid.slices);
  const dim3 blocks(static_cast<unsigned>(slices), static_cast<unsigned>(grid.heads));
  const bool norms = o.transform.has_norms();
  float* const partial = o.backward ? gradient_sums(o) : nullptr;
  dispatch(o.qkv.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const qkv = elements_of<T>(o.qkv, o.qkv.dtype, tokens, o.shape.qkv_cols(), "qkv");
    const auto problem = transform_problem<T>(o);
    const NormOperands<T> of_norms(o);
    constexpr int kN = 2;  // a head of 128 elements is a pair of vectors for each lane
    const bool fits =
        fits_vectors<T>(kN, problem.half, {qkv, of_norms.product, problem.weight, problem.key_weight}) &&
        fits_vectors<float>(kN, problem.half, {problem.rope, partial});
    with_width<kN>(fits, [&](auto n) {
      const auto start = [&](auto kernel, auto&&... operands) {
        launch(kernel, blocks, dim3(kTransformThreads), 0, stream, problem, operands...);
      };
      if (o.backward) {
        start(norms ? qkv_transform_backward_kernel<T, n(), true>
                    : qkv_transform_backward_kernel<T, n(), false>,
              of_norms.product, of_norms.inverse_rms, qkv, partial);
      } else {
        start(norms ? qkv_transform_kernel<T, n(), true> : qkv_transform_kernel<T, n(), false>,
              norms ? of_norms.product : qkv, qkv, of_norms.inverse_rms);
      }
    });
  });
  if (partial != nullptr) sum_gradients(o, grid, partial, stream);
}

}  // namespace llampi::device::cuda
