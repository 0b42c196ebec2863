// SPDX-License-Identifier: Apache-2.0
// The head with its loss: chunks of rows, so that the logits of one chunk are all that is ever in memory.
//
// Time of a chunk of Llama-3-8B (V = 128256, H = 4096, 512 rows, bfloat16) on an H200, estimated with 700
// TFLOP/s and 4 TB/s:
//   logits = x W^T, dx = dlogits W     0.54 TFLOP each                             1.54 ms
//   dW += dlogits^T x                  0.77 ms of arithmetic, 4.2 GB of dW         1.05 ms
//   the rows, here                     0.66 GB: read twice, gradients written      0.16 ms
// In all 2.8 ms, 44 ms for 8192 tokens: 6 % of a step of 775 ms (51.5 GFLOP a token at 55 % of 989 TFLOP/s).
// Arithmetic alone takes 37; what exceeds it is mostly dW, and chunks of 1024 rows would take 40 ms.
#include <cmath>

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/kernels.cuh"
#include "device/cuda/loss_sizes.hpp"

namespace llampi::device::cuda {
namespace {

constexpr int kLossThreads = 512;                 ///< a block per row
constexpr int kLoads = 4;                         ///< vectors of 4 that a thread has in flight
constexpr int kTile = kLossThreads * kLoads * 4;  ///< logits that a block holds at a time
constexpr int kSumThreads = 256;

/// Four gradients, written at once.
template <class T>
struct alignas(4 * sizeof(T)) Gradients {
  T values[4];
};

/// First of the 4 logits of the thread's load `i` of the tile at `begin`: neighbours read side by side.
__device__ inline std::int64_t column_of(std::int64_t begin, int i) {
  return begin + (i * kLossThreads + static_cast<int>(threadIdx.x)) * 4;
}

/// The thread's logits of a tile; -infinity behind the end of the row, where its gap is.
__device__ inline void load_tile(const float* row, std::int64_t begin, std::int64_t vocabulary,
                                 Pack<float> (&tile)[kLoads]) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const std::int64_t column = column_of(begin, i);
    if (column < vocabulary) tile[i] = load_pack(row + column);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (column + j >= vocabulary) tile[i].values[j] = -INFINITY;
    }
  }
}

struct LossStatistics {
  float maximum;
  float sum;  ///< of exp(logit - maximum)
};

/// In one pass: each thread rescales its sum when it meets a larger logit (Milakov & Gimelshein, arXiv
/// 1805.02867). A row with NaN or +infinity has NaN as sum. All threads of the block have the result.
__device__ inline LossStatistics loss_statistics(const float* row, std::int64_t vocabulary) {
  float maximum = -INFINITY, sum = 0;
  for (std::int64_t begin = 0; begin < vocabulary; begin += kTile) {
    Pack<float> tile[kLoads];
    load_tile(row, begin, vocabulary, tile);
    float larger = maximum;
#pragma unroll
    for (int i = 0; i < kLoads * 4; ++i) larger = fmaxf(larger, tile[i / 4].values[i % 4]);
    // Where nothing but -infinity was seen, differences of infinities must not become NaN.
    const float reference = larger == -INFINITY ? 0.0F : larger;
    sum *= expf(maximum - reference);
#pragma unroll
    for (int i = 0; i < kLoads * 4; ++i) sum += expf(tile[i / 4].values[i % 4] - reference);
    maximum = larger;
  }
  const float of_row = block_max(maximum);
  return {of_row, block_sum(sum * expf(maximum - of_row))};
}

/// The row of float32 logits becomes a row of T: (softmax - one-hot) scale. The logits of a tile are in
/// registers of all threads before any of their gradients is written, and gradients never run ahead of the
/// logits: they are not wider.
template <class T>
__device__ inline void write_gradient(float* row, std::int64_t vocabulary, std::int32_t label, float scale,
                                      LossStatistics statistics) {
  T* const gradient = reinterpret_cast<T*>(row);
  const float factor = scale / statistics.sum;
  for (std::int64_t begin = 0; begin < vocabulary; begin += kTile) {
    Pack<float> tile[kLoads];
    load_tile(row, begin, vocabulary, tile);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::int64_t column = column_of(begin, i);
      Gradients<T> out;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float probability = expf(tile[i].values[j] - statistics.maximum) * factor;
        out.values[j] = from_float<T>(column + j == label ? probability - scale : probability);
      }
      if (column < vocabulary) *reinterpret_cast<Gradients<T>*>(gradient + column) = out;
    }
  }
}

template <class T>
__device__ inline void write_zeros(float* row, std::int64_t vocabulary) {
  T* const gradient = reinterpret_cast<T*>(row);
  Gradients<T> zeros;
#pragma unroll
  for (int j = 0; j < 4; ++j) zeros.values[j] = from_float<T>(0.0F);
  for (std::int64_t column = threadIdx.x * 4; column < vocabulary; column += kLossThreads * 4)
    *reinterpret_cast<Gradients<T>*>(gradient + column) = zeros;
}

/// A block per row. A label that is no row of the head makes the row's loss and gradient NaN: the host cannot
/// look at the labels without waiting for them.
template <class T, bool kGradient>
__global__ void __launch_bounds__(kLossThreads, 3)
    cross_entropy(float* logits, std::int64_t stride, std::int64_t vocabulary, const std::int32_t* labels,
                  const double* inverse_tokens, float* losses) {
  float* const row = logits + blockIdx.x * stride;
  const std::int32_t label = labels[blockIdx.x];
  if (label < 0) {  // of the whole block
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if constexpr (kGradient) write_zeros<T>(row, vocabulary);
    return;
  }
  const bool valid = label < vocabulary;
  const LossStatistics statistics = loss_statistics(row, vocabulary);
  if (threadIdx.x == 0)
    losses[blockIdx.x] = valid ? logf(statistics.sum) + (statistics.maximum - row[label]) : NAN;
  if constexpr (kGradient) {
    const float scale = valid ? static_cast<float>(*inverse_tokens) : NAN;
    write_gradient<T>(row, vocabulary, label, scale, statistics);
  }
}

/// loss_sum += the losses of the rows, by one block in an order that depends on `rows` alone.
__global__ void __launch_bounds__(kSumThreads)
    add_losses(const float* losses, std::int64_t rows, double* loss_sum) {
  __shared__ double partial[kSumThreads];
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kSumThreads)
    sum += static_cast<double>(losses[row]);
  partial[threadIdx.x] = sum;
  for (unsigned half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *loss_sum += partial[0];
}

/// The operands that the loss has with and without gradients, checked, and the steps on a chunk of rows.
class Head {
 public:
  template <class Operands>
  Head(const Operands& o, const Tensor& gemm_workspace, Gemm& gemm, cudaStream_t stream)
      : x_(o.x),
        weight_(o.weight),
        labels_(elements_of<const std::int32_t>(o.labels, DType::int32, 1, o.labels.cols, "labels")),
        loss_sum_(o.loss_sum),
        gemm_workspace_(gemm_workspace),
        gemm_(gemm),
        stream_(stream) {
    elements_of(x_, x_.dtype, o.labels.cols, x_.cols, "x");
    elements_of(weight_, x_.dtype, weight_.rows, x_.cols, "weight");
    require(o.workspace.bytes() >= head_loss_bytes(x_.rows, weight_.rows),
            "the workspace of the head is too small");
    require(reinterpret_cast<std::uintptr_t>(o.workspace.data) % 256 == 0,
            "the workspace of the head is not aligned");
    losses_ = static_cast<float*>(o.workspace.data);
    logits_ = losses_ + head_losses_bytes(chunk()) / 4;
  }

  std::int64_t tokens() const { return x_.rows; }
  std::int64_t chunk() const { return head_rows(x_.rows, weight_.rows); }

  /// logits = x W^T, of rows [begin, end).
  void logits(std::int64_t begin, std::int64_t end) {
    GemmShape shape{.m = end - begin, .n = weight_.rows, .k = x_.cols, .b = Transpose::yes, .in = x_.dtype};
    shape.out = DType::float32;
    shape.c_stride = stride();
    multiply(shape, x_.slice_rows(begin, end).data, weight_.data, logits_);
  }

  /// loss_sum += ...; with kGradient the logits become their gradients.
  template <bool kGradient>
  void losses(std::int64_t begin, std::int64_t end, const double* inverse_tokens) {
    const auto grid = static_cast<unsigned>(end - begin);
    dispatch(x_.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      launch(cross_entropy<T, kGradient>, dim3(grid), dim3(kLossThreads), 0, stream_, logits_, stride(),
             weight_.rows, labels_ + begin, inverse_tokens, losses_);
    });
    launch(add_losses, dim3(1), dim3(kSumThreads), 0, stream_, losses_, end - begin, loss_sum_);
  }

  /// dx = dlogits W, of these rows.
  void input_gradient(std::int64_t begin, std::int64_t end, const Tensor& dx) {
    GemmShape shape{.m = end - begin, .n = x_.cols, .k = weight_.rows, .in = x_.dtype, .out = x_.dtype};
    shape.a_stride = gradient_stride();
    multiply(shape, logits_, weight_.data, dx.slice_rows(begin, end).data);
  }

  /// dweight (+)= dlogits^T x.
  void weight_gradient(std::int64_t begin, std::int64_t end, void* dweight, Accumulate accumulate) {
    GemmShape shape{.m = weight_.rows, .n = x_.cols, .k = end - begin, .a = Transpose::yes, .in = x_.dtype};
    shape.out = DType::float32;
    shape.accumulate = accumulate;
    shape.a_stride = gradient_stride();
    multiply(shape, logits_, x_.slice_rows(begin, end).data, dweight);
  }

 private:
  std::int64_t stride() const { return logits_stride(weight_.rows); }
  /// In elements of T.
  std::int64_t gradient_stride() const { return stride() * 4 / size_of(x_.dtype); }

  void multiply(const GemmShape& shape, const void* a, const void* b, void* c) {
    gemm_.run(shape, {a, b, c}, gemm_workspace_, stream_);
  }

  Tensor x_, weight_;
  const std::int32_t* labels_;
  double* loss_sum_;
  Tensor gemm_workspace_;
  Gemm& gemm_;
  cudaStream_t stream_;
  float* losses_;  ///< [chunk]
  float* logits_;  ///< [chunk, stride]
};

}  // namespace

void CudaDevice::execute(const op::LinearCrossEntropy& o) {
  Head head(o, workspace_, *gemm_, compute());
  for (std::int64_t begin = 0; begin < head.tokens(); begin += head.chunk()) {
    const std::int64_t end = std::min(begin + head.chunk(), head.tokens());
    head.logits(begin, end);
    head.losses<false>(begin, end, nullptr);
    progress();
  }
}

void CudaDevice::execute(const op::LinearCrossEntropyBackward& o) {
  Head head(o, workspace_, *gemm_, compute());
  elements_of(o.dx, o.x.dtype, o.x.rows, o.x.cols, "dx");
  void* const dweight = optional_elements_of(o.dweight, DType::float32, o.weight.rows, o.x.cols, "dweight");
  for (std::int64_t begin = 0; begin < head.tokens(); begin += head.chunk()) {
    const std::int64_t end = std::min(begin + head.chunk(), head.tokens());
    head.logits(begin, end);
    head.losses<true>(begin, end, o.inverse_tokens);
    head.input_gradient(begin, end, o.dx);
    const Accumulate accumulate = begin == 0 ? o.accumulate_dweight : Accumulate::yes;
    if (dweight != nullptr) head.weight_gradient(begin, end, dweight, accumulate);
    progress();
  }
}

}  // namespace llampi::device::cuda
