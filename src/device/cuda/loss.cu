// SPDX-License-Identifier: Apache-2.0
// The head with its loss: chunks of rows, so that the logits of one chunk are all that is ever in memory.
//
// Time for 8192 tokens of Llama-3-8B (V = 128256, H = 4096, bfloat16) on an H100, estimated with 650 TFLOP/s and
// 3.3 TB/s: three products of 8.6 TFLOP 40 ms; what the rows take here, logits read once and gradients written
// 1.3 ms; the gradient of the weight, read and written for each chunk, 1.3 ms, of which the product hides some.
// Measured there: what the rows take, 3.5 ms; since then, with a third fewer instructions, not again.
#include <cmath>

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/kernels.cuh"
#include "device/cuda/loss_sizes.hpp"
#include "device/cuda/sizes.hpp"
#include "device/cuda/vectors.cuh"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

constexpr int kLossThreads = 512;       ///< a block per row
constexpr int kWideLossThreads = 1024;  ///< of rows that leave no room for a second block's in shared memory
constexpr int kNarrowLossThreads = 32;  ///< of rows that one tile of so few threads holds
constexpr int kLoads = 4;               ///< packs that a thread has in flight
constexpr int kSumThreads = 256;

/// exp(x), x <= 0. Where logits have 16 bits, x is off by far more than this is.
template <class T>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(T) == 2) {
    return exp2_approximate(x * kLog2E);
  } else {
    return expf(x);
  }
}

template <class T>
__device__ inline Pack<T> all_of(float x) {
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) pack.values[j] = from_float<T>(x);
  return pack;
}

/// A row of logits, which the block reads twice: the second time from shared memory as far as that reaches. A
/// thread reads the same columns both times, and no others.
template <class T, int kThreads>
struct LogitsRow {
  static constexpr int kPack = Pack<T>::kSize;
  static constexpr int kTile = kThreads * kLoads * kPack;  ///< logits that a block looks at at a time

  T* data;
  int vocabulary;
  T* kept;  ///< shared memory
  int kept_columns;

  /// First column of the thread's load `i` of the tile at `begin`: neighbours read side by side.
  static __device__ int column_of(int begin, int i) {
    return begin + (i * kThreads + static_cast<int>(threadIdx.x)) * kPack;
  }
  /// Whether it is this thread that reads and writes this column.
  static __device__ bool owns(int column) {
    return column / kPack % kThreads == static_cast<int>(threadIdx.x);
  }
  /// The thread's logits of a tile, which are kept; -infinity behind the end of the row, where its gap is.
  __device__ void load(int begin, Pack<T> (&tile)[kLoads]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int column = column_of(begin, i);
      tile[i] = column < vocabulary ? load_pack(data + column) : all_of<T>(-INFINITY);
      if (column + kPack > vocabulary) {
#pragma unroll
        for (int j = 0; j < kPack; ++j) {
          if (column + j >= vocabulary) tile[i].values[j] = from_float<T>(-INFINITY);
        }
      }
      if (column < kept_columns) store_pack(kept + column, tile[i]);
    }
  }
  __device__ Pack<T> load_again(int column) const {
    if (column < kept_columns) return load_pack(kept + column);
    return load_pack(data + column);
  }
};

struct LossStatistics {
  float maximum;
  float sum;  ///< of exp(logit - maximum)
};

/// In one pass: each thread rescales its sum when it meets a larger logit (Milakov & Gimelshein, arXiv
/// 1805.02867). A row with NaN or +infinity has NaN as sum. All threads of the block have the result.
template <class T, int kThreads>
__device__ inline LossStatistics loss_statistics(const LogitsRow<T, kThreads>& row) {
  constexpr int kPack = Pack<T>::kSize;
  float maximum = -INFINITY, sum = 0;
  for (int begin = 0; begin < row.vocabulary; begin += row.kTile) {
    Pack<T> tile[kLoads];
    row.load(begin, tile);
    float larger = maximum;
#pragma unroll
    for (int i = 0; i < kLoads * kPack; ++i)
      larger = fmaxf(larger, to_float(tile[i / kPack].values[i % kPack]));
    // Where nothing but -infinity was seen, differences of infinities must not become NaN.
    const float reference = larger == -INFINITY ? 0.0F : larger;
    sum *= exponential<T>(maximum - reference);
#pragma unroll
    for (int i = 0; i < kLoads * kPack; ++i)
      sum += exponential<T>(to_float(tile[i / kPack].values[i % kPack]) - reference);
    maximum = larger;
  }
  const float of_row = block_max(maximum);
  return {of_row, block_sum(sum * exponential<T>(maximum - of_row))};
}

/// Of logits that are not their row's label's.
template <class T>
__device__ inline Pack<T> gradients(const Pack<T>& logits, float factor, float maximum) {
  float gradients[Pack<T>::kSize];
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j)
    gradients[j] = exponential<T>(to_float(logits.values[j]) - maximum) * factor;
  return pack_of<T>(gradients);
}

/// The logits become (softmax - one-hot) scale.
/// @param logit of the label, if that is a row of the head
template <class T, int kThreads>
__device__ inline void write_gradient(const LogitsRow<T, kThreads>& row, std::int32_t label, float logit,
                                      float scale, LossStatistics statistics) {
  const float factor = scale / statistics.sum;
  for (int begin = 0; begin < row.vocabulary; begin += row.kTile) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int column = row.column_of(begin, i);
      if (column >= row.vocabulary) continue;
      store_pack(row.data + column, gradients(row.load_again(column), factor, statistics.maximum));
    }
  }
  if (label < row.vocabulary && row.owns(label))  // written once more, by the same thread
    row.data[label] = from_float<T>(exponential<T>(logit - statistics.maximum) * factor - scale);
}

template <class T, int kThreads>
__device__ inline void write_zeros(const LogitsRow<T, kThreads>& row) {
  const Pack<T> zeros = all_of<T>(0.0F);
  for (int column = static_cast<int>(threadIdx.x) * Pack<T>::kSize; column < row.vocabulary;
       column += kThreads * Pack<T>::kSize)
    store_pack(row.data + column, zeros);
}

/// A block per row, with kept_columns of shared memory. A label that is no row of the head makes the row's
/// loss and gradient NaN: the host cannot look at the labels without waiting for them.
template <class T, int kThreads, bool kGradient>
__global__ void __launch_bounds__(kThreads)
    cross_entropy(T* logits, std::int64_t stride, int vocabulary, int kept_columns,
                  const std::int32_t* labels, const double* inverse_tokens, float* losses) {
  const LogitsRow<T, kThreads> row{logits + blockIdx.x * stride, vocabulary, dynamic_shared<T>(),
                                   kept_columns};
  const std::int32_t label = labels[blockIdx.x];
  if (label < 0) {  // of the whole block
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if constexpr (kGradient) write_zeros(row);
    return;
  }
  const bool valid = label < vocabulary;
  const bool writes_loss = threadIdx.x == 0;
  const float logit = valid ? to_float(row.data[label]) : 0.0F;  // before it is overwritten
  const LossStatistics statistics = loss_statistics(row);
  if (writes_loss) losses[blockIdx.x] = valid ? logf(statistics.sum) + (statistics.maximum - logit) : NAN;
  if constexpr (kGradient) {
    const float scale = valid ? static_cast<float>(*inverse_tokens) : NAN;
    write_gradient(row, label, logit, scale, statistics);
  }
}

/// Bytes of shared memory for the logits of a block.
std::int64_t bytes_to_keep() {
  constexpr std::int64_t kOwn = 1024;  // of reductions
  int device = 0, most = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "cudaDeviceGetAttribute");
  return most - kOwn;
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

/// rows[i] and row_labels[i]: the i-th row that has a label, in order; behind the last one, up to `count`, row 0 without a label. By
/// one block. More labels than `count` make the loss NaN: some would be left out.
__global__ void __launch_bounds__(kSumThreads)
    list_rows(const std::int32_t* labels, std::int64_t tokens, std::int64_t count, std::int32_t* rows,
              std::int32_t* row_labels, double* loss_sum) {
  __shared__ int up_to[kSumThreads];  // labels of the threads up to this one
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t share = (tokens + kSumThreads - 1) / kSumThreads;
  const std::int64_t begin = thread * share < tokens ? thread * share : tokens;
  const std::int64_t end = begin + share < tokens ? begin + share : tokens;
  int own = 0;
  for (std::int64_t t = begin; t < end; ++t) own += labels[t] >= 0 ? 1 : 0;
  up_to[thread] = own;
  for (int step = 1; step < kSumThreads; step *= 2) {
    __syncthreads();
    const int before = thread >= step ? up_to[thread - step] : 0;
    __syncthreads();
    up_to[thread] += before;
  }
  __syncthreads();
  std::int64_t place = up_to[thread] - own;
  for (std::int64_t t = begin; t < end; ++t) {
    if (labels[t] < 0) continue;
    if (place < count) {
      rows[place] = static_cast<std::int32_t>(t);
      row_labels[place] = labels[t];
    }
    ++place;
  }
  const std::int64_t all = up_to[kSumThreads - 1];
  for (std::int64_t i = all + thread; i < count; i += kSumThreads) {
    rows[i] = 0;
    row_labels[i] = -1;
  }
  if (all > count && thread == 0) *loss_sum = NAN;
}

/// to[rows[i]] = from[i] where row i has a label. Blocks as in gather_kernel (embedding.cu).
template <class T, int N>
__global__ void __launch_bounds__(kElementThreads)
    scatter_rows(const std::int32_t* rows, const std::int32_t* labels, const T* from, std::int64_t hidden,
                 T* to) {
  const std::int64_t i = blockIdx.x;
  const std::int64_t column = (std::int64_t{blockIdx.y} * kElementThreads + threadIdx.x) * N;
  if (labels[i] < 0 || column >= hidden) return;
  store_vector(to + rows[i] * hidden + column, load_vector<N>(from + i * hidden + column));
}

/// The operands that the loss has with and without gradients, checked, and the steps on a chunk of rows: of all rows, or of
/// those that have labels, packed.
class Head {
 public:
  template <class Operands>
  Head(const Operands& o, CudaDevice& device, const Tensor& gemm_workspace, Gemm& gemm, cudaStream_t stream)
      : x_(o.x),
        weight_(o.weight),
        labels_(elements_of<const std::int32_t>(o.labels, DType::int32, 1, o.labels.cols, "labels")),
        loss_sum_(o.loss_sum),
        device_(device),
        gemm_workspace_(gemm_workspace),
        gemm_(gemm),
        stream_(stream),
        chunk_(head_rows(o.x.rows, o.weight.rows, o.x.dtype, o.logits_bytes)),
        rows_(o.x.rows) {
    elements_of(x_, x_.dtype, o.labels.cols, x_.cols, "x");
    elements_of(weight_, x_.dtype, weight_.rows, x_.cols, "weight");
    require(weight_.rows < (1 << 30), "the vocabulary is too large for the loss");
    require(o.workspace.bytes() >= head_loss_bytes(x_.rows, weight_.rows, x_.dtype, o.logits_bytes),
            "the workspace of the head is too small");
    require(reinterpret_cast<std::uintptr_t>(o.workspace.data) % 256 == 0,
            "the workspace of the head is not aligned");
    auto* const workspace = static_cast<std::byte*>(o.workspace.data);
    losses_ = static_cast<float*>(o.workspace.data);
    logits_ = workspace + head_losses_bytes(chunk_);
    if (o.valid_labels > 0 && o.valid_labels < x_.rows) pack(o.valid_labels, o.logits_bytes, workspace);
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t chunk() const { return chunk_; }
  bool packs() const { return static_cast<bool>(listed_); }

  /// x of rows [begin, end); what the last call returned does not stay.
  Tensor rows_of_x(std::int64_t begin, std::int64_t end) {
    if (!packs()) return x_.slice_rows(begin, end);
    const Tensor packed = packed_.slice_rows(0, end - begin);
    device_.execute(op::Embedding{.tokens = listed_.slice(begin, end), .table = x_, .x = packed});
    return packed;
  }

  /// logits = x W^T.
  void logits(const Tensor& x) {
    GemmShape shape{.m = x.rows, .n = weight_.rows, .k = x.cols, .b = Transpose::yes};
    shape.in = shape.out = x.dtype;
    shape.c_stride = stride();
    multiply(shape, x.data, weight_.data, logits_);
  }

  /// loss_sum += ...; with kGradient the logits become their gradients.
  template <bool kGradient>
  void losses(std::int64_t begin, std::int64_t end, const double* inverse_tokens) {
    const auto grid = static_cast<unsigned>(end - begin);
    dispatch(x_.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const auto vocabulary = static_cast<int>(weight_.rows);
      const std::int64_t most = kGradient ? bytes_to_keep() : 0,
                         row = round_up(std::int64_t{vocabulary} * sizeof(T), 16);
      const auto kept = static_cast<int>(std::min(most / 16 * 16, row) / sizeof(T));
      const auto start = [&](auto kernel, int threads) {
        launch_with_shared(kernel, dim3(grid), dim3(static_cast<unsigned>(threads)),
                           static_cast<std::size_t>(kept) * sizeof(T), stream_, static_cast<T*>(logits_),
                           stride(), vocabulary, kept, labels_ + begin, inverse_tokens, losses_);
      };
      if (vocabulary <= LogitsRow<T, kNarrowLossThreads>::kTile) {
        start(cross_entropy<T, kNarrowLossThreads, kGradient>, kNarrowLossThreads);
      } else if (2 * row <= most || !kGradient) {
        start(cross_entropy<T, kLossThreads, kGradient>, kLossThreads);
      } else {
        start(cross_entropy<T, kWideLossThreads, kGradient>, kWideLossThreads);
      }
    });
    launch(add_losses, dim3(1), dim3(kSumThreads), 0, stream_, losses_, end - begin, loss_sum_);
  }

  /// dweight (+)= dlogits^T x.
  void weight_gradient(const Tensor& x, const Tensor& dweight, Accumulate accumulate) {
    GemmShape shape{.m = weight_.rows, .n = x.cols, .k = x.rows, .a = Transpose::yes, .in = x.dtype};
    shape.out = dweight.dtype;
    shape.accumulate = accumulate;
    shape.a_stride = stride();
    multiply(shape, logits_, x.data, dweight.data);
  }

  /// dx = dlogits W, of rows [begin, end). Packed, it replaces their x.
  void input_gradient(std::int64_t begin, std::int64_t end, const Tensor& dx) {
    const Tensor rows = packs() ? packed_.slice_rows(0, end - begin) : dx.slice_rows(begin, end);
    GemmShape shape{.m = rows.rows, .n = rows.cols, .k = weight_.rows, .in = rows.dtype, .out = rows.dtype};
    shape.a_stride = stride();
    multiply(shape, logits_, weight_.data, rows.data);
    if (packs()) scatter(rows, begin, dx);
  }

 private:
  std::int64_t stride() const { return logits_stride(weight_.rows, x_.dtype); }

  /// From here on there are only rows that have labels, if there is room for them.
  void pack(std::int64_t rows, std::int64_t logits_bytes, std::byte* workspace) {
    const PackedHead parts = packed_head(rows, x_.rows, x_.cols, weight_.rows, x_.dtype, logits_bytes);
    if (parts.chunk == 0) return;
    rows_ = rows;
    chunk_ = parts.chunk;
    logits_ = workspace + parts.logits;
    packed_ = {workspace + parts.x, x_.dtype, chunk_, x_.cols};
    listed_ = {workspace + parts.rows, DType::int32, 1, rows_};
    auto* const labels = reinterpret_cast<std::int32_t*>(workspace + parts.labels);
    launch(list_rows, dim3(1), dim3(kSumThreads), 0, stream_, labels_, x_.rows, rows_,
           static_cast<std::int32_t*>(listed_.data), labels, loss_sum_);
    labels_ = labels;
  }

  /// From packed row i to the row of `to` that is listed as number begin + i.
  void scatter(const Tensor& packed, std::int64_t begin, const Tensor& to) {
    const std::int64_t hidden = packed.cols;
    dispatch(packed.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const auto* const from = static_cast<const T*>(packed.data);
      auto* const all = static_cast<T*>(to.data);
      with_width<kWidth<T>>(fits_vectors<T>(kWidth<T>, hidden, {from, all}), [&](auto n) {
        launch(scatter_rows<T, n()>, grid_of_rows(packed.rows, hidden, n()), dim3(kElementThreads), 0,
               stream_, static_cast<const std::int32_t*>(listed_.slice(begin, begin + packed.rows).data),
               labels_ + begin, from, hidden, all);
      });
    });
  }

  void multiply(const GemmShape& shape, const void* a, const void* b, void* c) {
    gemm_.run(shape, {a, b, c}, gemm_workspace_, stream_);
  }

  Tensor x_, weight_;
  const std::int32_t* labels_;  ///< of rows 0 to rows_
  double* loss_sum_;
  CudaDevice& device_;
  Tensor gemm_workspace_;
  Gemm& gemm_;
  cudaStream_t stream_;
  std::int64_t chunk_;  ///< rows
  std::int64_t rows_;   ///< whose logits are computed
  float* losses_;       ///< [chunk]
  void* logits_;        ///< [chunk, stride] in the dtype of x
  Tensor listed_;       ///< int32 [1, rows_]: where packed rows stand in x; empty: they are not packed
  Tensor packed_;       ///< a chunk of them
};

}  // namespace

void CudaDevice::execute(const op::LinearCrossEntropy& o) {
  Head head(o, *this, workspace_, *gemm_, compute());
  for (std::int64_t begin = 0; begin < head.rows(); begin += head.chunk()) {
    const std::int64_t end = std::min(begin + head.chunk(), head.rows());
    head.logits(head.rows_of_x(begin, end));
    head.losses<false>(begin, end, nullptr);
    progress();
  }
}

void CudaDevice::execute(const op::LinearCrossEntropyBackward& o) {
  Head head(o, *this, workspace_, *gemm_, compute());
  elements_of(o.dx, o.x.dtype, o.x.rows, o.x.cols, "dx");
  const bool is_trained =
      weight_gradient_of(o.dweight, o.x.dtype, o.weight.rows, o.x.cols, "dweight") != nullptr;
  if (head.packs()) execute(op::Zero{.destination = o.dx});
  for (std::int64_t begin = 0; begin < head.rows(); begin += head.chunk()) {
    const std::int64_t end = std::min(begin + head.chunk(), head.rows());
    const Tensor x = head.rows_of_x(begin, end);
    head.logits(x);
    head.losses<true>(begin, end, o.inverse_tokens);
    const Accumulate accumulate = begin == 0 ? o.accumulate_dweight : Accumulate::yes;
    if (is_trained) head.weight_gradient(x, o.dweight, accumulate);
    head.input_gradient(begin, end, o.dx);
    progress();
  }
}

}  // namespace llampi::device::cuda
