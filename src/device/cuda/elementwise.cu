// SPDX-License-Identifier: Apache-2.0
// RoPE and SwiGLU. All of it moves bytes: times at 4.8 TB/s are of 8192 tokens in 16 bits.
#include "device/cuda/elementwise.hpp"

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/magnitudes.cuh"
#include "device/cuda/rotate.cuh"
#include "device/cuda/swiglu.cuh"
#include "device/recomputation_checks.hpp"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

// ---- RoPE ----
// Query and key heads are read and written once: 4 (Hq + Hkv) D bytes a token; 168 MB, 35 us for 32 + 8 heads
// of 128.

/// A block has a token; a thread has N angles, which it reads once, and every blockDim.y-th head.
template <class T, int N, bool kMeasures>
__global__ void __launch_bounds__(kElementThreads)
    rope_kernel(const std::int32_t* positions, const float* rope, float direction, int heads, int half,
                std::int64_t row_cols, T* qkv, bool writes, std::int32_t* maximum) {
  std::int32_t largest = 0;
  const std::int64_t token = blockIdx.x;
  const float* angles = rope + std::int64_t{positions[token]} * 2 * half;
  T* row = qkv + token * row_cols;
  for (int j = static_cast<int>(threadIdx.x) * N; j < half; j += static_cast<int>(blockDim.x) * N) {
    const auto cosines = load_vector<N>(angles + j), sines = load_vector<N>(angles + half + j);
    for (int head = static_cast<int>(threadIdx.y); head < heads; head += static_cast<int>(blockDim.y)) {
      T* first = row + std::int64_t{head} * 2 * half + j;
      const auto vector_a = load_vector<N>(first), vector_b = load_vector<N>(first + half);
      float a[N], b[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        a[i] = vector_a[i], b[i] = vector_b[i];
        rotate(a[i], b[i], cosines[i], sines[i] * direction);
      }
      const auto rotated_a = Vector<T, N>::from(a), rotated_b = Vector<T, N>::from(b);
      if (writes) {
        store_vector(first, rotated_a);
        store_vector(first + half, rotated_b);
      }
      if constexpr (kMeasures) largest = max(largest, max(magnitude_of(rotated_a), magnitude_of(rotated_b)));
    }
  }
  if constexpr (kMeasures) {
    // The value heads, which are only read.
    const std::int64_t threads = std::int64_t{blockDim.x} * blockDim.y;
    for (std::int64_t i = std::int64_t{heads} * 2 * half + (threadIdx.y * blockDim.x + threadIdx.x) * N;
         i < row_cols; i += threads * N)
      largest = max(largest, magnitude_of(load_vector<N>(row + i)));
    raise_maximum(largest, maximum);
  }
}

/// As many heads at a time as leave no thread idle in the last pass, or few.
dim3 rope_block(int heads, int vectors) {
  const int across = std::min(vectors, kElementThreads);
  const int most = kElementThreads / across;
  const int passes = (heads + most - 1) / most;
  return dim3(static_cast<unsigned>(across), static_cast<unsigned>((heads + passes - 1) / passes));
}

// ---- SwiGLU ----
// Forward: gate and up are read, their product is written: 6 F bytes a token; 705 MB, 147 us for F = 14336.
// Backward: these and the gradient are read, gate and up are written: 10 F bytes; 1.17 GB, 245 us. What was activated can be
// written once more, which is the cheapest place to recompute it: 12 F bytes, 294 us.

/// Where a thread of a grid of `slices` blocks for each token is.
template <int N>
struct SlicePlace {
  std::int64_t token, column;
  __device__ explicit SlicePlace(int slices)
      : token(blockIdx.x / static_cast<unsigned>(slices)),
        column((std::int64_t{blockIdx.x % static_cast<unsigned>(slices)} * kElementThreads + threadIdx.x) *
               N) {}
};

template <class T, int N, bool kMeasures>
__global__ void __launch_bounds__(kElementThreads)
    swiglu_kernel(const T* gate_up, std::int64_t width, int slices, T* activated, std::int32_t* maximum) {
  const SlicePlace<N> at(slices);
  std::int32_t largest = 0;
  if (at.column < width) {
    const T* row = gate_up + at.token * 2 * width + at.column;
    const auto gate = load_vector<N>(row), up = load_vector<N>(row + width);
    float product[N];
#pragma unroll
    for (int i = 0; i < N; ++i) product[i] = swiglu(gate[i], up[i]);
    const auto result = Vector<T, N>::from(product);
    store_vector(activated + at.token * width + at.column, result);
    if constexpr (kMeasures) largest = magnitude_of(result);
  }
  if constexpr (kMeasures) raise_maximum(largest, maximum);
}

template <class T, int N, Besides kBesides>
__global__ void __launch_bounds__(kElementThreads)
    swiglu_backward_kernel(const T* dactivated, std::int64_t width, int slices, T* gate_up, bool writes,
                           std::int32_t* maximum, T* activated) {
  const SlicePlace<N> at(slices);
  std::int32_t largest = 0;
  if (at.column < width) {
    T* row = gate_up + at.token * 2 * width + at.column;
    const auto gate = load_vector<N>(row), up = load_vector<N>(row + width);
    const auto d = load_vector<N>(dactivated + at.token * width + at.column);
    float dgate[N], dup[N];
#pragma unroll
    for (int i = 0; i < N; ++i) swiglu_gradient(d[i], gate[i], up[i], dgate[i], dup[i]);
    const auto result_gate = Vector<T, N>::from(dgate), result_up = Vector<T, N>::from(dup);
    if (writes) {
      store_vector(row, result_gate);
      store_vector(row + width, result_up);
    }
    if constexpr (kBesides == Besides::output) {
      float product[N];
#pragma unroll
      for (int i = 0; i < N; ++i) product[i] = swiglu(gate[i], up[i]);
      store_vector(activated + at.token * width + at.column, Vector<T, N>::from(product));
    }
    if constexpr (kBesides == Besides::maximum)
      largest = max(magnitude_of(result_gate), magnitude_of(result_up));
  }
  if constexpr (kBesides == Besides::maximum) raise_maximum(largest, maximum);
}

/// work(N, slices) with the number of blocks that a row of `width` elements takes.
template <class T, class Work>
void with_slices(std::int64_t width, std::initializer_list<const T*> data, const Work& work) {
  with_width<kWidth<T>>(fits_vectors<T>(kWidth<T>, width, data), [&](auto n) {
    work(n, static_cast<int>(ceil_div(width, std::int64_t{kElementThreads} * n())));
  });
}

dim3 blocks_of(std::int64_t tokens, int slices) { return dim3(static_cast<unsigned>(tokens * slices)); }

}  // namespace

void apply_rope(const op::Rope& o, cudaStream_t stream) {
  require(o.writes || !o.transform, "a transform of q, k and v that is only measured");
  // Without the gradient of a bias, all that it leaves to do backwards is the rotation.
  if (o.transform && !(o.backward && o.transform.bias && !o.dtransform.bias))
    return apply_qkv_transform(o, stream);
  const AttentionShape& shape = o.shape;
  const std::int64_t tokens = o.positions.cols, half = shape.head_dim / 2;
  const auto* positions = elements_of<std::int32_t>(o.positions, DType::int32, 1, tokens, "positions");
  const auto* table = elements_of<float>(o.rope, DType::float32, o.rope.rows, shape.head_dim, "rope");
  const int heads = static_cast<int>(shape.query_heads + shape.key_value_heads);
  const float direction = o.backward ? -1.0F : 1.0F;
  if (tokens == 0) return;
  std::int32_t* const largest = optional_maximum(o.maximum);
  dispatch(o.qkv.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* data = elements_of<T>(o.qkv, o.qkv.dtype, tokens, shape.qkv_cols(), "qkv");
    constexpr int kN = kWidth<T>;
    const bool fits = fits_vectors<T>(kN, half, {data}) && fits_vectors<float>(kN, half, {table});
    with_width<kN>(fits, [&](auto n) {
      const dim3 block = rope_block(heads, static_cast<int>(ceil_div(half, n())));
      launch(largest == nullptr ? rope_kernel<T, n(), false> : rope_kernel<T, n(), true>,
             dim3(static_cast<unsigned>(tokens)), block, 0, stream, positions, table, direction, heads,
             static_cast<int>(half), shape.qkv_cols(), data, o.writes, largest);
    });
  });
}

void apply_swiglu(Tensor gate_up, Tensor activated, cudaStream_t stream, Tensor maximum) {
  const std::int64_t tokens = activated.rows, width = activated.cols;
  if (tokens == 0) return;
  std::int32_t* const largest = optional_maximum(maximum);
  dispatch(activated.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = elements_of<T>(gate_up, activated.dtype, tokens, 2 * width, "gate_up");
    T* to = elements_of<T>(activated, activated.dtype, tokens, width, "activated");
    with_slices<T>(width, {from, to}, [&](auto n, int slices) {
      launch(largest == nullptr ? swiglu_kernel<T, n(), false> : swiglu_kernel<T, n(), true>,
             blocks_of(tokens, slices), dim3(kElementThreads), 0, stream, from, width, slices, to, largest);
    });
  });
}

void apply_swiglu_backward(const op::SwigluBackward& o, cudaStream_t stream) {
  const Tensor &dactivated = o.dactivated, &gate_up = o.gate_up;
  const std::int64_t tokens = dactivated.rows, width = dactivated.cols;
  if (tokens == 0) return;
  check_recomputation(o);
  std::int32_t* const largest = optional_maximum(o.maximum);
  dispatch(gate_up.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = elements_of<T>(dactivated, gate_up.dtype, tokens, width, "dactivated");
    T* to = elements_of<T>(gate_up, gate_up.dtype, tokens, 2 * width, "gate_up");
    T* activated =
        static_cast<T*>(optional_elements_of(o.activated, gate_up.dtype, tokens, width, "activated"));
    with_slices<T>(width, {from, to, activated}, [&](auto n, int slices) {
      launch(activated != nullptr ? swiglu_backward_kernel<T, n(), Besides::output>
             : largest != nullptr ? swiglu_backward_kernel<T, n(), Besides::maximum>
                                  : swiglu_backward_kernel<T, n(), Besides::nothing>,
             blocks_of(tokens, slices), dim3(kElementThreads), 0, stream, from, width, slices, to, o.writes,
             largest, activated);
    });
  });
}

void CudaDevice::execute(const op::Rope& o) { apply_rope(o, compute()); }

void CudaDevice::execute(const op::Swiglu& o) { apply_swiglu(o.gate_up, o.activated, compute(), o.maximum); }

void CudaDevice::execute(const op::SwigluBackward& o) { apply_swiglu_backward(o, compute()); }

}  // namespace llampi::device::cuda
