// SPDX-License-Identifier: Apache-2.0
// Casts with one scale: what op::Fp8Cast does to numbers, and the kernel that writes them and their transpose, whether they
// are read from memory or computed as they are cast.
#pragma once

#include "device/cuda/fp8_cast.cuh"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {

/// What a cast writes; null: it does not.
struct CastOutputs {
  std::uint8_t *values, *transposed;
  float* scale;
  unsigned long long* counts;  ///< saturated, zero_scales
};

/// As Fp8Scaling::tensor.
__device__ inline void write_scale(int exponent, float* to) {
  to[0] = power_of_two(-exponent);
  to[1] = power_of_two(exponent);
  to[2] = to[3] = 0;
}

/// Casts with the scale that follows from `maximum`.
template <DType kDType>
class Caster {
 public:
  __device__ explicit Caster(const std::int32_t* maximum)
      : bits_(*maximum),
        exponent_(float8_scale_exponent(float8_format(kDType), bits_)),
        scale_(power_of_two(exponent_)) {}

  template <class T>
  __device__ uint2 operator()(const Vector<T, kCastWidth>& source) {
    const CastVector vector = as_bfloat16(source);
    infinite_ += infinities(vector);
    return float8_vector<kDType>(vector, [this](int) { return scale_; });
  }
  template <class T>
  __device__ std::uint8_t operator()(T source) {
    const float x = as_bfloat16<T>(to_float(source));
    infinite_ += infinities(x);
    return float8_of<kDType>(scaled(x, scale_));
  }

  /// Counts; the first block writes the scale down, too. To be called by all threads of the block.
  __device__ void finish(const CastOutputs& to) const {
    count_infinities(infinite_, to.counts);
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    if (to.scale != nullptr) write_scale(exponent_, to.scale);
    if (to.counts != nullptr && bits_ == 0) atomicAdd(to.counts + 1, 1ULL);
  }

 private:
  std::int32_t bits_;
  int exponent_;
  float scale_;
  int infinite_ = 0;
};

/// Puts an element into a vector that has zero there.
template <class T, int N>
__device__ inline void put(Vector<T, N>& vector, int i, T x) {
  constexpr int kShare = Vector<T, N>::kShare;
  vector.words[i / kShare] |= bits_of(x) << (16 * (i % kShare));
}

/// Some elements side by side; without kVectors `count` of them at most, and zeros behind.
template <bool kVectors, class T>
__device__ inline Vector<T, kCastWidth> load_some(const T* from, std::int64_t count) {
  if constexpr (kVectors) return load_vector<kCastWidth>(from);
  Vector<T, kCastWidth> vector{};
#pragma unroll
  for (int i = 0; i < kCastWidth; ++i) {
    if (i < count) put(vector, i, from[i]);
  }
  return vector;
}

// The source of a cast has kMatrices matrices [rows, cols] whose elements of one place are made of the same numbers: they
// are the matrix [rows, kMatrices cols] that is cast. Sources say
//   vectors<kVectors>(row, col, result)   elements [row, col], ... of each of the matrices, with zeros for what is not in it
//   column(col, m)                        the column that it is of what is cast, of matrix number m
//   fits()                                whether all of it can be read in vectors

/// A matrix in memory.
template <class T>
struct MatrixSource {
  using Element = T;
  static constexpr int kMatrices = 1;
  const T* data;
  std::int64_t rows, cols;

  template <bool kVectors>
  __device__ void vectors(std::int64_t row, std::int64_t col, Vector<T, kCastWidth> (&result)[1]) const {
    result[0] = load_some<kVectors>(data + row * cols + col, cols - col);
  }
  __device__ std::int64_t column(std::int64_t col, int /*matrix*/) const { return col; }
  bool fits() const { return is_aligned(data, 16); }
};

/// A block has a tile of each matrix. With kVectors there are no parts of vectors anywhere.
template <class Source, DType kDType, bool kVectors>
__global__ void __launch_bounds__(ByteTile<kCastWidth>::kThreads)
    fp8_cast_tiles_kernel(const Source source, const std::int32_t* maximum, int tiles_across,
                          const CastOutputs to) {
  using Tile = ByteTile<kCastWidth>;
  using Loaded = Vector<typename Source::Element, kCastWidth>;
  constexpr int kMatrices = Source::kMatrices, kHalves = 2;
  constexpr int kAtOnce = kMatrices == 1 ? kHalves : 1;  ///< halves of a tile, as many as registers hold
  __shared__ typename Tile::Memory memory[kMatrices];
  const std::int64_t first_row = std::int64_t{blockIdx.x / static_cast<unsigned>(tiles_across)} * Tile::kSide;
  const std::int64_t first_column =
      std::int64_t{blockIdx.x % static_cast<unsigned>(tiles_across)} * Tile::kSide;
  Caster<kDType> cast(maximum);
#pragma unroll
  for (int half = 0; half < kHalves; half += kAtOnce) {
    const auto column_of = [&](int part) { return Tile::column() + (half + part) * Tile::kSide / kHalves; };
    Loaded vectors[kAtOnce][4][kMatrices] = {};
#pragma unroll
    for (int part = 0; part < kAtOnce; ++part) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t row = first_row + Tile::row() + i, col = first_column + column_of(part);
        if (row < source.rows && col < source.cols)
          source.template vectors<kVectors>(row, col, vectors[part][i]);
      }
    }
#pragma unroll
    for (int part = 0; part < kAtOnce; ++part) {
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        std::uint32_t left[4], right[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint2 bytes = cast(vectors[part][i][m]);
          left[i] = bytes.x;
          right[i] = bytes.y;
          if (to.values == nullptr) continue;
          const std::int64_t row = first_row + Tile::row() + i, col = first_column + column_of(part);
          if (row >= source.rows || col >= source.cols) continue;
          std::uint8_t* const row_of_values = to.values + row * kMatrices * source.cols;
          if constexpr (kVectors) {
            store_unit(reinterpret_cast<uint2*>(row_of_values + source.column(col, m)), bytes);
          } else {
            for (int j = 0; j < kCastWidth && col + j < source.cols; ++j)
              row_of_values[source.column(col + j, m)] =
                  static_cast<std::uint8_t>((j < 4 ? bytes.x : bytes.y) >> (8 * (j % 4)));
          }
        }
        Tile::put(memory[m], column_of(part), left);
        Tile::put(memory[m], column_of(part) + 4, right);
      }
    }
  }
  cast.finish(to);
  if (to.transposed == nullptr) return;
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kMatrices; ++m) {
    Tile::template store<kVectors>(memory[m], first_row, first_column, source.rows, source.cols,
                                   to.transposed, [&](std::int64_t c) { return source.column(c, m); });
  }
}

template <DType kDType, class Source>
void launch_cast_tiles(const Source& source, const std::int32_t* maximum, const CastOutputs& to,
                       cudaStream_t stream) {
  constexpr std::int64_t kSide = ByteTile<kCastWidth>::kSide;
  const bool fits = source.fits() && source.rows % 16 == 0 && source.cols % kCastWidth == 0 &&
                    is_aligned(to.values, kCastWidth) && is_aligned(to.transposed, 16);
  const std::int64_t across = std::max(ceil_div(source.cols, kSide), std::int64_t{1});
  launch(fits ? fp8_cast_tiles_kernel<Source, kDType, true> : fp8_cast_tiles_kernel<Source, kDType, false>,
         at_least_one(ceil_div(source.rows, kSide) * across), dim3(ByteTile<kCastWidth>::kThreads), 0, stream,
         source, maximum, static_cast<int>(across), to);
}

/// What it writes of a matrix [rows, cols], after a check of each operand.
inline CastOutputs cast_outputs(const op::Fp8Cast& o, std::int64_t rows, std::int64_t cols) {
  const auto shape = fp8_scale_shape(Fp8Scaling::tensor, rows, cols);
  return {fp8_elements(o.values, rows, cols, "values"), fp8_elements(o.transposed, cols, rows, "transposed"),
          static_cast<float*>(optional_elements_of(o.scale, DType::float32, shape.rows, shape.cols, "scale")),
          counters(o.counts)};
}

inline const std::int32_t* cast_maximum(const op::Fp8Cast& o) {
  return elements_of<std::int32_t>(o.maximum, DType::int32, 1, 1, "maximum");
}

}  // namespace llampi::device::cuda
