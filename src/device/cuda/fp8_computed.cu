// SPDX-License-Identifier: Apache-2.0
// Casts of what is computed as it is cast: by the formulas, and so with the bits, of the kernels that would have written it.
// All of it moves bytes: times at 3.35 TB/s are of 8192 tokens, from 16 bits, with the transpose.
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/fp8_tiles.cuh"
#include "device/cuda/rotate.cuh"
#include "device/cuda/swiglu.cuh"
#include "device/fp8_checks.hpp"

namespace llampi::device::cuda {
namespace {

/// RMSNorm: 4 bytes an element; 134 MB, 40 us for rows of 4096.
template <class T>
struct NormSource {
  using Element = T;
  static constexpr int kMatrices = 1;
  const T *x, *weight;
  const float* inverse_rms;
  std::int64_t rows, cols;

  template <bool kVectors>
  __device__ void vectors(std::int64_t row, std::int64_t col, Vector<T, kCastWidth> (&result)[1]) const {
    const auto from = load_some<kVectors>(x + row * cols + col, cols - col);
    const auto w = load_some<kVectors>(weight + col, cols - col);
    const float r = inverse_rms[row];
    float y[kCastWidth];
#pragma unroll
    for (int i = 0; i < kCastWidth; ++i) y[i] = from[i] * r * w[i];
    result[0] = Vector<T, kCastWidth>::from(y);
  }
  __device__ std::int64_t column(std::int64_t col, int /*matrix*/) const { return col; }
  bool fits() const { return is_aligned(x, 16) && is_aligned(weight, 16); }
};

/// The gradients of gate and of up: 10 bytes for an element of each; 1.17 GB, 351 us for F = 14336.
template <class T>
struct SwigluGradientSource {
  using Element = T;
  static constexpr int kMatrices = 2;
  const T *dactivated, *gate_up;
  std::int64_t rows, cols;

  template <bool kVectors>
  __device__ void vectors(std::int64_t row, std::int64_t col, Vector<T, kCastWidth> (&result)[2]) const {
    const T* const from = gate_up + row * 2 * cols + col;
    const auto gate = load_some<kVectors>(from, cols - col),
               up = load_some<kVectors>(from + cols, cols - col);
    const auto d = load_some<kVectors>(dactivated + row * cols + col, cols - col);
    float dgate[kCastWidth], dup[kCastWidth];
#pragma unroll
    for (int i = 0; i < kCastWidth; ++i) swiglu_gradient(d[i], gate[i], up[i], dgate[i], dup[i]);
    result[0] = Vector<T, kCastWidth>::from(dgate);
    result[1] = Vector<T, kCastWidth>::from(dup);
  }
  __device__ std::int64_t column(std::int64_t col, int matrix) const { return col + matrix * cols; }
  bool fits() const { return is_aligned(dactivated, 16) && is_aligned(gate_up, 16); }
};

/// The first and the second halves of all heads, which are rotated back, but those of values: 4 bytes an element; 201 MB,
/// 60 us for 32 + 8 + 8 heads of 128.
template <class T>
struct RotatedSource {
  using Element = T;
  static constexpr int kMatrices = 2;
  const std::int32_t* positions;
  const float* rope;
  const T* qkv;
  std::int64_t rows, cols;
  int half, rotated_cols;  ///< of a head; of all heads that are rotated, of `cols`

  template <bool kVectors>
  __device__ void vectors(std::int64_t row, std::int64_t col, Vector<T, kCastWidth> (&result)[2]) const {
    const T* const from = qkv + row * 2 * cols;
    const float* const angles = rope + std::int64_t{positions[row]} * 2 * half;
    if constexpr (kVectors) {
      result[0] = load_vector<kCastWidth>(from + column(col, 0));
      result[1] = load_vector<kCastWidth>(from + column(col, 1));
      if (col >= rotated_cols) return;
      const int j = static_cast<int>(col) % half;
      const auto cosines = load_vector<kCastWidth>(angles + j);
      const auto sines = load_vector<kCastWidth>(angles + half + j);
      float a[kCastWidth], b[kCastWidth];
#pragma unroll
      for (int i = 0; i < kCastWidth; ++i) {
        a[i] = result[0][i], b[i] = result[1][i];
        rotate(a[i], b[i], cosines[i], -sines[i]);
      }
      result[0] = Vector<T, kCastWidth>::from(a);
      result[1] = Vector<T, kCastWidth>::from(b);
    } else {
      result[0] = result[1] = {};
      for (int i = 0; i < kCastWidth && col + i < cols; ++i) {
        const int j = static_cast<int>(col + i) % half;
        T first = from[column(col + i, 0)], second = from[column(col + i, 1)];
        if (col + i < rotated_cols) {
          float a = to_float(first), b = to_float(second);
          rotate(a, b, angles[j], -angles[half + j]);
          first = from_float<T>(a);
          second = from_float<T>(b);
        }
        put(result[0], i, first);
        put(result[1], i, second);
      }
    }
  }
  __device__ std::int64_t column(std::int64_t col, int matrix) const {
    const int head = static_cast<int>(col) / half;
    return col + (head + matrix) * half;
  }
  bool fits() const { return half % kCastWidth == 0 && is_aligned(qkv, 16) && is_aligned(rope, 16); }
};

}  // namespace

void CudaDevice::execute(const op::RmsNormCast& o) {
  const std::int64_t tokens = o.x.rows, hidden = o.x.cols;
  require(!o.cast.source, "the cast of what is computed has a source");
  const auto* r = elements_of<float>(o.inverse_rms, DType::float32, 1, tokens, "inverse_rms");
  const CastOutputs to = cast_outputs(o.cast, tokens, hidden);
  with_cast(o.x, fp8_cast_dtype(o.cast.values, o.cast.transposed), [&](const auto* x, auto dtype) {
    using T = std::remove_cvref_t<decltype(*x)>;
    const T* const weight = elements_of<T>(o.weight, o.x.dtype, 1, hidden, "weight");
    launch_cast_tiles<dtype()>(NormSource<T>{x, weight, r, tokens, hidden}, cast_maximum(o.cast), to,
                               compute());
  });
}

void CudaDevice::execute(const op::SwigluBackwardCast& o) {
  const std::int64_t tokens = o.dactivated.rows, width = o.dactivated.cols;
  require(!o.cast.source, "the cast of what is computed has a source");
  const CastOutputs to = cast_outputs(o.cast, tokens, 2 * width);
  with_cast(o.dactivated, fp8_cast_dtype(o.cast.values, o.cast.transposed), [&](const auto* d, auto dtype) {
    using T = std::remove_cvref_t<decltype(*d)>;
    const T* const gate_up = elements_of<T>(o.gate_up, o.dactivated.dtype, tokens, 2 * width, "gate_up");
    launch_cast_tiles<dtype()>(SwigluGradientSource<T>{d, gate_up, tokens, width}, cast_maximum(o.cast), to,
                               compute());
  });
}

void CudaDevice::execute(const op::RopeBackwardCast& o) {
  const AttentionShape& shape = o.shape;
  const std::int64_t tokens = o.positions.cols, cols = shape.qkv_cols(), half = shape.head_dim / 2;
  require(!o.cast.source, "the cast of what is computed has a source");
  const auto* positions = elements_of<std::int32_t>(o.positions, DType::int32, 1, tokens, "positions");
  const auto* table = elements_of<float>(o.rope, DType::float32, o.rope.rows, shape.head_dim, "rope");
  const std::int64_t rotated = (shape.query_heads + shape.key_value_heads) * half;
  const CastOutputs to = cast_outputs(o.cast, tokens, cols);
  with_cast(o.qkv, fp8_cast_dtype(o.cast.values, o.cast.transposed), [&](const auto* data, auto dtype) {
    using T = std::remove_cvref_t<decltype(*data)>;
    const T* const qkv = elements_of<T>(o.qkv, o.qkv.dtype, tokens, cols, "qkv");
    launch_cast_tiles<dtype()>(RotatedSource<T>{positions, table, qkv, tokens, cols / 2,
                                                static_cast<int>(half), static_cast<int>(rotated)},
                               cast_maximum(o.cast), to, compute());
  });
}

}  // namespace llampi::device::cuda
