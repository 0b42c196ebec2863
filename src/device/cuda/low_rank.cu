// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters: thin products beside the large one, which read its input where it is, but for what dropout leaves of it.
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/philox.cuh"
#include "device/cuda/vectors.cuh"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

constexpr int kElementsOfDraw = 8;  // 16 bits each

/// What of Dropout a kernel reads.
struct DropKey {
  std::uint64_t key, purpose;
  const std::int32_t* first_sample;
  std::int64_t seq_len;
  std::uint32_t threshold;
  float factor;

  explicit DropKey(const Dropout& dropout)
      : key(dropout.key),
        purpose(dropout.purpose),
        first_sample(elements_of<std::int32_t>(dropout.first_sample, DType::int32, 1, 2, "first_sample")),
        seq_len(dropout.seq_len),
        threshold(dropout_threshold(dropout.probability)),
        factor(static_cast<float>(dropout_factor(dropout.probability))) {}
};

enum class Dropped : bool { written, added };

/// A thread has the elements of one block of random bits: those of a row that begin at a multiple of eight. N: read and written
/// that many at a time, 8 or 1. As on the CPU, a product and a sum are rounded one after the other.
template <class T, int N, Dropped kHow>
__global__ void __launch_bounds__(kElementThreads)
    drop_kernel(const T* from, std::int64_t cols, std::int64_t draws, int slices, DropKey key, T* to) {
  const std::int64_t token = blockIdx.x / static_cast<unsigned>(slices);
  const std::int64_t draw =
      std::int64_t{blockIdx.x % static_cast<unsigned>(slices)} * kElementThreads + threadIdx.x;
  if (draw >= draws) return;
  const std::uint64_t sample = std::uint64_t{static_cast<std::uint32_t>(key.first_sample[1])} << 32 |
                               static_cast<std::uint32_t>(key.first_sample[0]);
  const bool drops = static_cast<std::int64_t>(sample) >= 0;
  const float factor = drops ? key.factor : 1.0F;
  PhiloxBlock bits{};
  if (drops) {
    const std::uint64_t row =
        sample * static_cast<std::uint64_t>(key.seq_len) + static_cast<std::uint64_t>(token);
    bits = philox(row * static_cast<std::uint64_t>(draws) + static_cast<std::uint64_t>(draw), key.purpose,
                  key.key);
  }
  const std::int64_t first = token * cols + draw * kElementsOfDraw;
#pragma unroll
  for (int begin = 0; begin < kElementsOfDraw; begin += N) {
    if (draw * kElementsOfDraw + begin >= cols) break;
    const auto values = load_vector<N>(from + first + begin);
    Vector<T, N> before{};
    if constexpr (kHow == Dropped::added) before = load_vector<N>(to + first + begin);
    float result[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int at = begin + i;
      const std::uint32_t drawn = bits.words[at / 2] >> (16 * (at % 2)) & 0xFFFFU;
      const bool kept = !drops || drawn >= key.threshold;
      const float value = kept ? __fmul_rn(values[i], factor) : 0.0F;
      result[i] = kHow == Dropped::added ? __fadd_rn(before[i], value) : value;
    }
    store_vector(to + first + begin, Vector<T, N>::from(result));
  }
}

/// to = drop(from), or to += drop(from); both [T, C] in one dtype.
void drop(const Dropout& dropout, const Tensor& from_, const Tensor& to_, Dropped how, cudaStream_t stream) {
  const std::int64_t rows = from_.rows, cols = from_.cols, draws = ceil_div(cols, kElementsOfDraw);
  const int slices = static_cast<int>(ceil_div(draws, kElementThreads));
  const DropKey key(dropout);
  dispatch(from_.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = elements_of<T>(from_, from_.dtype, rows, cols, "x");
    T* to = elements_of<T>(to_, from_.dtype, rows, cols, "dropped");
    with_width<kElementsOfDraw>(fits_vectors<T>(kElementsOfDraw, cols, {from, to}), [&](auto n) {
      launch(
          how == Dropped::added ? drop_kernel<T, n(), Dropped::added> : drop_kernel<T, n(), Dropped::written>,
          dim3(static_cast<unsigned>(rows * slices)), dim3(kElementThreads), 0, stream, from, cols, draws,
          slices, key, to);
    });
  });
}

/// Operands of the adapters of a product whose input is [T, in]: all but gradients are in its dtype.
class AdapterOperands {
 public:
  /// @param x the input, or its gradient
  AdapterOperands(const LowRank& adapter, const Tensor& x) : l_(adapter), x_(x) {}

  std::int64_t rows() const { return x_.rows; }
  std::int64_t in() const { return x_.cols; }
  std::int64_t rank() const { return l_.a.rows; }
  std::int64_t out() const { return l_.b.rows; }
  bool drops() const { return l_.dropout.probability > 0; }

  void* x() const { return activations(x_, rows(), in(), "x"); }
  void* dropped() const { return activations(l_.dropout.dropped, rows(), in(), "dropped"); }
  void* a() const { return activations(l_.a, rank(), in(), "a"); }
  void* b() const { return activations(l_.b, out(), rank(), "b"); }
  void* u() const { return activations(l_.u, rows(), rank(), "u"); }
  void* du() const { return activations(l_.du, rows(), rank(), "du"); }
  void* da() const { return weight_gradient_of(l_.da, x_.dtype, rank(), in(), "da"); }
  void* db() const { return weight_gradient_of(l_.db, x_.dtype, out(), rank(), "db"); }
  /// Its columns of the product's result y, or of the gradient of y.
  void* columns_of(const Tensor& y) const {
    require(l_.first >= 0 && l_.first + out() <= y.cols, "an adapter beyond its product");
    return static_cast<char*>(activations(y, rows(), y.cols, "y")) + l_.first * size_of(x_.dtype);
  }
  /// As GemmShape, with in and out in the dtype of x.
  GemmShape shape(std::int64_t m, std::int64_t n, std::int64_t k) const {
    return {.m = m, .n = n, .k = k, .in = x_.dtype, .out = x_.dtype};
  }

 private:
  void* activations(const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* name) const {
    return elements_of(tensor, x_.dtype, rows, cols, name);
  }

  const LowRank& l_;
  const Tensor& x_;
};

}  // namespace

// Whether the sample is one of an evaluation, which drops nothing, only the GPU knows: `dropped` is then a copy.
void CudaDevice::execute(const op::LowRankDown& o) {
  for (const LowRank& l : o.adapters) {
    const AdapterOperands of(l, o.x);
    if (of.drops()) drop(l.dropout, o.x, l.dropout.dropped, Dropped::written, compute());
    GemmShape down = of.shape(of.rows(), of.rank(), of.in());
    down.b = Transpose::yes;
    gemm_->run(down,
               {.a = of.drops() ? of.dropped() : of.x(),
                .b = of.a(),
                .c = of.u(),
                .scale = static_cast<float>(l.scale)},
               workspace_, compute());
  }
}

void CudaDevice::add_adapters(std::span<const LowRank> adapters, const Tensor& x, const Tensor& y) {
  execute(op::LowRankDown{.x = x, .adapters = adapters});
  for (const LowRank& l : adapters) {
    const AdapterOperands of(l, x);
    GemmShape up = of.shape(of.rows(), of.out(), of.rank());
    up.b = Transpose::yes;
    up.accumulate = Accumulate::yes;
    up.c_stride = y.cols;
    gemm_->run(up, {.a = of.u(), .b = of.b(), .c = of.columns_of(y)}, workspace_, compute());
  }
}

void CudaDevice::adapter_input_gradients(const op::InputGradient& o) {
  for (const LowRank& l : o.adapters) {
    const AdapterOperands of(l, o.dx);
    const void* const gradient = of.columns_of(o.dy);
    if (void* const db = of.db(); db != nullptr) {
      GemmShape shape = of.shape(of.out(), of.rank(), of.rows());
      shape.a = Transpose::yes;
      shape.a_stride = o.dy.cols;
      shape.out = l.db.dtype;
      shape.accumulate = l.accumulate_db;
      gemm_->run(shape, {.a = gradient, .b = of.u(), .c = db}, workspace_, compute());
    }
    GemmShape back = of.shape(of.rows(), of.rank(), of.out());
    back.a_stride = o.dy.cols;
    gemm_->run(back, {.a = gradient, .b = of.b(), .c = of.du(), .scale = static_cast<float>(l.scale)},
               workspace_, compute());
    GemmShape into_input = of.shape(of.rows(), of.in(), of.rank());
    into_input.accumulate = of.drops() ? Accumulate::no : Accumulate::yes;
    gemm_->run(into_input, {.a = of.du(), .b = of.a(), .c = of.drops() ? of.dropped() : of.x()}, workspace_,
               compute());
    if (of.drops()) drop(l.dropout, l.dropout.dropped, o.dx, Dropped::added, compute());
  }
}

void CudaDevice::adapter_weight_gradients(const op::WeightGradient& o) {
  for (const LowRank& l : o.adapters) {
    const AdapterOperands of(l, o.x);
    void* const da = of.da();
    if (da == nullptr) continue;
    if (of.drops()) drop(l.dropout, o.x, l.dropout.dropped, Dropped::written, compute());
    GemmShape shape = of.shape(of.rank(), of.in(), of.rows());
    shape.a = Transpose::yes;
    shape.out = l.da.dtype;
    shape.accumulate = l.accumulate_da;
    gemm_->run(shape, {.a = of.du(), .b = of.drops() ? of.dropped() : of.x(), .c = da}, workspace_,
               compute());
  }
}

}  // namespace llampi::device::cuda
