// SPDX-License-Identifier: Apache-2.0
// RMSNorm. A block has a row at a time, in registers: each tensor is read once. Times at 4.8 TB/s are of 8192
// tokens of 4096 in 16 bits.
#include "device/cuda/column_sums.cuh"
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/magnitudes.cuh"
#include "device/cuda/sizes.hpp"
#include "device/recomputation_checks.hpp"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

constexpr int kNormThreads = 512;  ///< at most

/// Vectors of N elements that a thread holds of a row: 16384 elements in 16 bits, 8192 in float32 or without
/// vectors are the most that a row can have.
template <int N>
constexpr int kHeld = N == 1 ? 16 : 4;
static_assert(kNormThreads * kHeld<8> * 8 == most_gpu_hidden(8, DType::bfloat16));
static_assert(kNormThreads * kHeld<4> * 4 == most_gpu_hidden(8, DType::float32));
static_assert(kNormThreads * kHeld<1> == most_gpu_hidden(1, DType::bfloat16));

/// The part of a row that a thread holds, vectors blockDim.x apart.
template <class T, int N>
struct Row {
  static constexpr int H = kHeld<N>;
  Vector<T, N> vectors[H];

  static __device__ std::int64_t column(int h) {
    return (std::int64_t{threadIdx.x} + std::int64_t{h} * blockDim.x) * N;
  }
  __device__ void load(const T* from, std::int64_t hidden) {
#pragma unroll
    for (int h = 0; h < H; ++h)
      vectors[h] = column(h) < hidden ? load_vector<N>(from + column(h)) : Vector<T, N>{};
  }
  __device__ float operator()(int h, int i) const { return vectors[h][i]; }
  __device__ void forget() {
#pragma unroll
    for (int h = 0; h < H; ++h) vectors[h].forget();
  }
  __device__ std::int32_t magnitude() const {  // what is not of the row is 0
    std::int32_t largest = 0;
#pragma unroll
    for (int h = 0; h < H; ++h) largest = max(largest, magnitude_of(vectors[h]));
    return largest;
  }
  __device__ void store(T* to, std::int64_t hidden) const {
#pragma unroll
    for (int h = 0; h < H; ++h) {
      if (column(h) < hidden) store_vector(to + column(h), vectors[h]);
    }
  }
};

/// x r w, with r = inverse_rms and the weights w: vector h of a row.
template <class T, int N>
__device__ Vector<T, N> normed(const Row<T, N>& x, float r, const Row<T, N>& w, int h) {
  float result[N];
#pragma unroll
  for (int i = 0; i < N; ++i) result[i] = x(h, i) * r * w(h, i);
  return Vector<T, N>::from(result);
}

/// x is read, y written unless it is null: 4 H bytes a token, 134 MB, 28 us.
template <class T, int N, bool kMeasures>
__global__ void __launch_bounds__(kNormThreads)
    rms_norm_kernel(const T* x, const T* weight, float eps, std::int64_t hidden, T* y, float* inverse_rms,
                    std::int32_t* maximum) {
  const std::int64_t token = blockIdx.x;
  Row<T, N> row, w;
  row.load(x + token * hidden, hidden);
  w.load(weight, hidden);
  float squares = 0;
#pragma unroll
  for (int h = 0; h < kHeld<N>; ++h) {
#pragma unroll
    for (int i = 0; i < N; ++i) squares = fmaf(row(h, i), row(h, i), squares);
  }
  row.forget();
  const float r = inverse_root(block_sum(squares) / static_cast<float>(hidden) + eps);
  if (threadIdx.x == 0) inverse_rms[token] = r;
#pragma unroll
  for (int h = 0; h < kHeld<N>; ++h) row.vectors[h] = normed(row, r, w, h);
  if (y != nullptr) row.store(y + token * hidden, hidden);
  if constexpr (kMeasures) raise_maximum(row.magnitude(), maximum);
}

/// With r = inverse_rms: dx[i] = r dy[i] w[i] - x[i] r^3 sum(dy w x) / H. A block has every gridDim.x-th row
/// and writes its sum of dy x r to partial [blocks, hidden], unless that is null. dy and x are read, dx is
/// written, and read where it is added to: 6 or 8 H bytes a token, 201 or 268 MB, 42 or 56 us. What the forward pass wrote can
/// be written to y once more: 2 H bytes.
template <class T, int N, Besides kBesides>
__global__ void __launch_bounds__(kNormThreads)
    rms_norm_backward_kernel(const T* dy, const T* x, const T* weight, const float* inverse_rms,
                             std::int64_t tokens, std::int64_t hidden, bool accumulate, T* dx, float* partial,
                             T* y, std::int32_t* maximum) {
  constexpr int H = kHeld<N>;
  Row<T, N> w;
  w.load(weight, hidden);
  float dweight[H][N] = {};
  std::int32_t largest = 0;
  for (std::int64_t token = blockIdx.x; token < tokens; token += gridDim.x) {
    Row<T, N> row, gradient, branch{};
    row.load(x + token * hidden, hidden);
    gradient.load(dy + token * hidden, hidden);
    if (accumulate) branch.load(dx + token * hidden, hidden);
    const float r = inverse_rms[token];
    float sum = 0;
#pragma unroll
    for (int h = 0; h < H; ++h) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float product = gradient(h, i) * row(h, i);
        sum = fmaf(product, w(h, i), sum);
        dweight[h][i] = fmaf(product, r, dweight[h][i]);
      }
    }
    row.forget();
    gradient.forget();
    w.forget();
    const float coefficient = -r * r * r * block_sum(sum) / static_cast<float>(hidden);
#pragma unroll
    for (int h = 0; h < H; ++h) {
      float result[N];
#pragma unroll
      for (int i = 0; i < N; ++i)
        result[i] = branch(h, i) + fmaf(row(h, i), coefficient, gradient(h, i) * w(h, i) * r);
      branch.vectors[h] = Vector<T, N>::from(result);
      if constexpr (kBesides == Besides::output) {
        const std::int64_t column = Row<T, N>::column(h);
        if (column < hidden) store_vector(y + token * hidden + column, normed(row, r, w, h));
      }
    }
    w.forget();
    branch.store(dx + token * hidden, hidden);
    if constexpr (kBesides == Besides::maximum) largest = max(largest, branch.magnitude());
  }
  if constexpr (kBesides == Besides::maximum) raise_maximum(largest, maximum);
  if (partial == nullptr) return;
#pragma unroll
  for (int h = 0; h < H; ++h) {
    const std::int64_t column = Row<T, N>::column(h);
    if (column >= hidden) continue;
    store_vector(partial + blockIdx.x * hidden + column, Vector<float, N>::from(dweight[h]));
  }
}

/// work(N, threads) for rows of this many elements.
template <class T, class Work>
void with_row(std::int64_t hidden, bool fits, const Work& work) {
  with_width<kWidth<T>>(fits, [&](auto n) {
    const std::int64_t threads = 32 * ceil_div(hidden, std::int64_t{32} * n() * kHeld<n()>);
    require(threads <= kNormThreads, "rows of RMSNorm beyond most_gpu_hidden()");
    work(n, dim3(static_cast<unsigned>(threads)));
  });
}

}  // namespace

void CudaDevice::execute(const op::RmsNorm& o) {
  const std::int64_t tokens = o.x.rows, hidden = o.x.cols;
  std::int32_t* const largest = optional_maximum(o.maximum);
  float* r = elements_of<float>(o.inverse_rms, DType::float32, 1, tokens, "inverse_rms");
  dispatch(o.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = elements_of<T>(o.x, o.x.dtype, tokens, hidden, "x");
    const T* w = elements_of<T>(o.weight, o.x.dtype, 1, hidden, "weight");
    T* to = static_cast<T*>(optional_elements_of(o.y, o.x.dtype, tokens, hidden, "y"));
    with_row<T>(hidden, fits_vectors<T>(kWidth<T>, hidden, {from, w, to}), [&](auto n, dim3 threads) {
      launch(largest == nullptr ? rms_norm_kernel<T, n(), false> : rms_norm_kernel<T, n(), true>,
             dim3(static_cast<unsigned>(tokens)), threads, 0, compute(), from, w, static_cast<float>(o.eps),
             hidden, to, r, largest);
    });
  });
}

void CudaDevice::execute(const op::RmsNormBackward& o) {
  const std::int64_t tokens = o.x.rows, hidden = o.x.cols;
  std::int32_t* const largest = optional_maximum(o.maximum);
  const float* r = elements_of<float>(o.inverse_rms, DType::float32, 1, tokens, "inverse_rms");
  check_recomputation(o);
  void* const dw = weight_gradient_of(o.dweight, o.x.dtype, 1, hidden, "dweight");
  require(o.workspace.bytes() >= rms_norm_backward_bytes(tokens, hidden), "workspace smaller than asked for");
  auto* partial = dw == nullptr ? nullptr : static_cast<float*>(o.workspace.data);
  const auto blocks = static_cast<int>(std::min(
      {tokens, kNormBackwardBlocks, std::int64_t{4} * std::max(properties_.multiProcessorCount, 1)}));
  dispatch(o.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = elements_of<T>(o.x, o.x.dtype, tokens, hidden, "x");
    const T* gradient = elements_of<T>(o.dy, o.x.dtype, tokens, hidden, "dy");
    const T* w = elements_of<T>(o.weight, o.x.dtype, 1, hidden, "weight");
    T* to = elements_of<T>(o.dx, o.x.dtype, tokens, hidden, "dx");
    T* y = static_cast<T*>(optional_elements_of(o.y, o.x.dtype, tokens, hidden, "y"));
    const bool fits = fits_vectors<T>(kWidth<T>, hidden, {from, gradient, w, to, y}) &&
                      fits_vectors<float>(4, hidden, {partial});
    with_row<T>(hidden, fits, [&](auto n, dim3 threads) {
      launch(y != nullptr         ? rms_norm_backward_kernel<T, n(), Besides::output>
             : largest != nullptr ? rms_norm_backward_kernel<T, n(), Besides::maximum>
                                  : rms_norm_backward_kernel<T, n(), Besides::nothing>,
             dim3(blocks), threads, 0, compute(), gradient, from, w, r, tokens, hidden,
             o.accumulate_dx == Accumulate::yes, to, partial, y, largest);
    });
  });
  sum_columns(partial, blocks, hidden, o.dweight, o.accumulate_dweight, compute());
}

}  // namespace llampi::device::cuda
