// SPDX-License-Identifier: Apache-2.0
// Casts to 8 bits with a scale for each block of 128 x 128 of a weight, and for each tile of 1 x 128 of activations and
// gradients. All of it moves bytes: times at 3.35 TB/s are of 8192 x 4096 elements in 16 bits. A block of threads has a
// square of 128 x 128.
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/fp8_cast.cuh"
#include "device/cuda/magnitudes.cuh"
#include "device/fp8_checks.hpp"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

using Square = ByteTile<kCastWidth>;
static_assert(Square::kSide == kFp8Block);

/// On a multiprocessor: so that blocks of threads read while others cast.
constexpr int kSquaresAtOnce = 3;

/// The bits of a bfloat16, as those of the float32 that it is.
__device__ inline std::int32_t widened(std::uint32_t bits) { return static_cast<std::int32_t>(bits << 16); }

// ---- parts of weights ----
// The largest magnitudes: 2 bytes an element, 67 MB, 20 us. The cast: 3 bytes, 101 MB, 30 us.

constexpr int kRowVectors = Square::kSide / kCastWidth;      ///< of a row of a square
constexpr int kRowsAtOnce = Square::kThreads / kRowVectors;  ///< that a block of threads reads side by side
constexpr int kSquareTurns = Square::kSide / kRowsAtOnce;    ///< vectors of a thread

/// Elements side by side of a weight, which begin and end anywhere in it, and the squares that have some of them: whole
/// rows of squares.
struct WeightPart {
  std::int64_t begin;     ///< of the first square, counted from the part's first element: 0 or less
  std::int64_t elements;  ///< of the part
  unsigned across;        ///< squares of a row

  /// Where the thread's vector number `turn` of its square begins, counted likewise.
  __device__ std::int64_t place(int turn) const {
    const auto thread = static_cast<int>(threadIdx.x);
    const std::int64_t row =
        std::int64_t{blockIdx.x / across} * Square::kSide + turn * kRowsAtOnce + thread / kRowVectors;
    const std::int64_t square = row * across + blockIdx.x % across;
    return begin + square * Square::kSide + thread % kRowVectors * kCastWidth;
  }
  __device__ bool has(std::int64_t at) const { return at >= 0 && at < elements; }
  __device__ bool has_vector(std::int64_t at) const { return at >= 0 && at + kCastWidth <= elements; }
};

/// A vector of the part, with zeros for what is not in it.
template <bool kVectors, class T>
__device__ inline CastVector load_of(const T* source, const WeightPart& part, std::int64_t at) {
  if (kVectors && part.has_vector(at)) return as_bfloat16(load_vector<kCastWidth>(source + at));
  CastVector vector{};
#pragma unroll
  for (int i = 0; i < kCastWidth; ++i) {
    if (part.has(at + i))
      vector.words[i / 2] |=
          __float_as_uint(as_bfloat16<T>(to_float(source[at + i]))) >> 16 << (16 * (i % 2));
  }
  return vector;
}

template <bool kVectors>
__device__ inline void store_of(std::uint8_t* values, const WeightPart& part, std::int64_t at, uint2 bytes) {
  if (kVectors && part.has_vector(at)) return store_unit(reinterpret_cast<uint2*>(values + at), bytes);
#pragma unroll
  for (int i = 0; i < kCastWidth; ++i) {
    if (part.has(at + i))
      values[at + i] = static_cast<std::uint8_t>((i < 4 ? bytes.x : bytes.y) >> (8 * (i % 4)));
  }
}

template <class T, bool kVectors>
__global__ void __launch_bounds__(Square::kThreads)
    fp8_block_maximum_kernel(const T* source, const WeightPart part, std::int32_t* maxima) {
  CastVector vectors[kSquareTurns];
#pragma unroll
  for (int turn = 0; turn < kSquareTurns; ++turn)
    vectors[turn] = load_of<kVectors>(source, part, part.place(turn));
  std::int32_t largest = 0;
#pragma unroll
  for (int turn = 0; turn < kSquareTurns; ++turn) largest = max(largest, magnitude_of(vectors[turn]));
  raise_maximum(largest, maxima + blockIdx.x);
}

/// A weight of zeros counts as one. All threads of the block call it.
__device__ inline void count_zero_weight(const std::int32_t* maxima, std::int64_t squares,
                                         unsigned long long* zero_scales) {
  bool any = false;
  for (std::int64_t i = threadIdx.x; i < squares; i += Square::kThreads) any = any || maxima[i] != 0;
  if (__syncthreads_or(any ? 1 : 0) == 0 && threadIdx.x == 0) atomicAdd(zero_scales, 1ULL);
}

/// @param maxima of all of the weight
/// @param first_square number of the first block's square
template <class T, bool kVectors>
__global__ void __launch_bounds__(Square::kThreads, kSquaresAtOnce)
    fp8_block_cast_kernel(const T* source, const WeightPart part, const std::int32_t* maxima,
                          std::int64_t first_square, std::int64_t squares, std::uint8_t* values,
                          unsigned long long* counts) {
  CastVector vectors[kSquareTurns];
#pragma unroll
  for (int turn = 0; turn < kSquareTurns; ++turn)
    vectors[turn] = load_of<kVectors>(source, part, part.place(turn));
  const int exponent =
      float8_scale_exponent(float8_format(DType::float8_e4m3fn), maxima[first_square + blockIdx.x]);
  const float scale = power_of_two(exponent);
  int infinite = 0;
#pragma unroll
  for (int turn = 0; turn < kSquareTurns; ++turn) {
    infinite += infinities(vectors[turn]);
    store_of<kVectors>(values, part, part.place(turn),
                       float8_vector<DType::float8_e4m3fn>(vectors[turn], [=](int) { return scale; }));
  }
  count_infinities(infinite, counts);
  if (counts != nullptr && blockIdx.x == 0) count_zero_weight(maxima, squares, counts + 1);
}

/// Scales [rows, row] of a grid of maxima, of which `cols` follow from them.
struct BlockScales {
  float* scales;
  std::int64_t rows, row, cols;
};

/// A thread has a scale: of the weight, then of its transpose.
__global__ void __launch_bounds__(kElementThreads)
    fp8_block_scales_kernel(const std::int32_t* maxima, const BlockScales weight, const BlockScales turned) {
  std::int64_t i = std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  const bool is_turned = i >= weight.rows * weight.row;
  if (is_turned) i -= weight.rows * weight.row;
  const BlockScales to = is_turned ? turned : weight;
  const std::int64_t r = i / to.row, c = i % to.row;
  if (r >= to.rows) return;
  float scale = 1;
  if (c < to.cols) {
    const std::int32_t maximum = is_turned ? maxima[c * to.rows + r] : maxima[r * to.cols + c];
    scale = power_of_two(-float8_scale_exponent(float8_format(DType::float8_e4m3fn), maximum));
  }
  to.scales[i] = scale;
}

// ---- tiles ----
// Read once, and written twice with other scales: 4 bytes an element, 134 MB, 40 us.

/// What a cast writes; null: it does not.
struct TileOutputs {
  std::uint8_t* values;
  float* scales;
  std::uint8_t* transposed;
  float* transposed_scales;
  std::int32_t* maximum;       ///< the largest magnitude's bits, blocks that are through
  unsigned long long* counts;  ///< saturated, zero_scales
};

constexpr int kSquareHalves = 2;
/// What a thread has of a square: as ByteTile says, of four rows some columns of each half.
using SquareVectors = CastVector[kSquareHalves][4];

/// See Vector: each use begins with the numbers in 16 bits.
__device__ inline void forget(SquareVectors& vectors) {
#pragma unroll
  for (auto& half : vectors) {
#pragma unroll
    for (CastVector& vector : half) vector.forget();
  }
}

__device__ inline int column_of(int half, int i) {
  return Square::column() + half * (Square::kSide / kSquareHalves) + i;
}

/// The larger of the lower halves, and of the upper ones.
__device__ inline std::uint32_t max_of_halves(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  return __vmaxu2(a, b);
#else
  return max(a & 0xFFFFU, b & 0xFFFFU) | max(a >> 16, b >> 16) << 16;
#endif
}

/// The largest magnitudes of a thread's rows and columns, each the 15 bits of a bfloat16 without its sign.
struct TileMaxima {
  std::uint32_t rows[2];  ///< two in a word
  std::uint32_t columns[kSquareHalves][kCastWidth / 2];
  int infinite;
};

/// Bit 15 of each half that is not finite.
__device__ inline std::uint32_t not_finite(std::uint32_t magnitudes) {
  return (magnitudes + 0x00800080U) & 0x80008000U;
}

/// @tparam kFinite whether all numbers are
template <bool kFinite>
__device__ inline TileMaxima measured(const SquareVectors& vectors) {
  TileMaxima maxima{};
  std::uint32_t rows[4] = {};
#pragma unroll
  for (int half = 0; half < kSquareHalves; ++half) {
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      if constexpr (!kFinite) maxima.infinite += infinities(vectors[half][row]);
#pragma unroll
      for (int i = 0; i < kCastWidth / 2; ++i) {
        std::uint32_t magnitudes = vectors[half][row].words[i] & 0x7FFF7FFFU;
        if constexpr (!kFinite) magnitudes &= ~((not_finite(magnitudes) >> 15) * 0xFFFFU);
        rows[row] = max_of_halves(rows[row], magnitudes);
        maxima.columns[half][i] = max_of_halves(maxima.columns[half][i], magnitudes);
      }
    }
  }
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const std::uint32_t low = rows[2 * pair], high = rows[2 * pair + 1];
    maxima.rows[pair] = max_of_halves((low & 0xFFFFU) | high << 16, low >> 16 | (high & 0xFFFF0000U));
  }
  return maxima;
}

/// Those of the rows are of all their columns then, those of the columns of the warp's rows.
__device__ inline TileMaxima measured(SquareVectors& vectors) {
  TileMaxima maxima = measured<true>(vectors);
  if ((not_finite(maxima.rows[0]) | not_finite(maxima.rows[1])) != 0) {  // seldom
    forget(vectors);
    maxima = measured<false>(vectors);
  }
  for (int lanes = 1; lanes < 8; lanes *= 2) {  // that share rows
#pragma unroll
    for (std::uint32_t& rows : maxima.rows)
      rows = max_of_halves(rows, __shfl_xor_sync(0xFFFFFFFFU, rows, lanes));
  }
  for (int lanes = 8; lanes < 32; lanes *= 2) {  // that share columns
#pragma unroll
    for (auto& half : maxima.columns) {
#pragma unroll
      for (std::uint32_t& columns : half)
        columns = max_of_halves(columns, __shfl_xor_sync(0xFFFFFFFFU, columns, lanes));
    }
  }
  return maxima;
}

/// What the threads of a block tell each other of its columns.
struct SquareColumns {
  static constexpr int kWarps = Square::kThreads / 32;
  uint4 maxima[kWarps][Square::kSide / 8];  ///< two in a word
  float scales[Square::kSide];
};

__device__ inline void show(const TileMaxima& maxima, SquareColumns& columns) {
  if (threadIdx.x % 32 >= 8) return;
#pragma unroll
  for (int half = 0; half < kSquareHalves; ++half) {
    const auto& words = maxima.columns[half];
    columns.maxima[threadIdx.x / 32][column_of(half, 0) / 8] = uint4{words[0], words[1], words[2], words[3]};
  }
}

/// From a maximum in the lower half of a word.
template <DType kDType>
__device__ inline int exponent_of(std::uint32_t maximum) {
  return float8_scale_exponent(float8_format(kDType), widened(maximum & 0xFFFFU));
}

/// The scales of the square's columns, by the first threads. Returns the largest magnitude's bits of theirs.
/// @param inverse of the first column; null: not written
template <DType kDType>
__device__ inline std::int32_t scale_columns(SquareColumns& columns, float* inverse) {
  const auto pair = static_cast<int>(threadIdx.x);
  if (pair >= Square::kSide / 2) return 0;
  std::uint32_t maxima = 0;
#pragma unroll
  for (const auto& of_warp : columns.maxima)
    maxima = max_of_halves(maxima, reinterpret_cast<const std::uint32_t*>(of_warp)[pair]);
  const int exponents[] = {exponent_of<kDType>(maxima), exponent_of<kDType>(maxima >> 16)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    columns.scales[2 * pair + i] = power_of_two(exponents[i]);
    if (inverse != nullptr) inverse[2 * pair + i] = power_of_two(-exponents[i]);
  }
  return widened(max(maxima & 0xFFFFU, maxima >> 16));
}

/// Writes the thread's rows with their scales.
/// @param values of the square's first element
/// @param inverse of its first row
template <DType kDType>
__device__ inline void cast_rows(const SquareVectors& vectors, const TileMaxima& maxima, std::uint8_t* values,
                                 std::int64_t cols, float* inverse) {
  std::uint32_t inverses[4];
#pragma unroll
  for (int row = 0; row < 4; ++row) {
    const int exponent = exponent_of<kDType>(maxima.rows[row / 2] >> (16 * (row % 2)));
    const float scale = power_of_two(exponent);
    inverses[row] = __float_as_uint(power_of_two(-exponent));
#pragma unroll
    for (int half = 0; half < kSquareHalves; ++half) {
      std::uint8_t* const to = values + (Square::row() + row) * cols + column_of(half, 0);
      store_unit(reinterpret_cast<uint2*>(to),
                 float8_vector<kDType>(vectors[half][row], [=](int) { return scale; }));
    }
  }
  if (Square::column() == 0)
    store_unit(reinterpret_cast<uint4*>(inverse + Square::row()),
               uint4{inverses[0], inverses[1], inverses[2], inverses[3]});
}

/// Puts the thread's columns into `memory` with their scales.
template <DType kDType>
__device__ inline void put_columns(const SquareVectors& vectors, const SquareColumns& columns,
                                   Square::Memory& memory) {
#pragma unroll
  for (int half = 0; half < kSquareHalves; ++half) {
    const Pack<float> scales[] = {load_pack(columns.scales + column_of(half, 0)),
                                  load_pack(columns.scales + column_of(half, 4))};
    std::uint32_t left[4], right[4];
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      const uint2 bytes =
          float8_vector<kDType>(vectors[half][row], [&](int i) { return scales[i / 4].values[i % 4]; });
      left[row] = bytes.x;
      right[row] = bytes.y;
    }
    Square::put(memory, column_of(half, 0), left);
    Square::put(memory, column_of(half, 4), right);
  }
}

/// The last block to come here knows whether any has seen a number but zero. By the thread that raised the maximum.
__device__ inline void count_zero_matrix(const TileOutputs& to) {
  if (to.counts == nullptr || threadIdx.x != 0) return;
  __threadfence();
  const auto through = static_cast<unsigned>(atomicAdd(to.maximum + 1, 1)) + 1;
  if (through < gridDim.x) return;
  __threadfence();
  if (atomicMax(to.maximum, 0) == 0) atomicAdd(to.counts + 1, 1ULL);
}

template <class T, DType kDType>
__global__ void __launch_bounds__(Square::kThreads, sizeof(T) == 2 ? kSquaresAtOnce : 2)
    fp8_tile_cast_kernel(const T* source, std::int64_t rows, std::int64_t cols, const TileOutputs to) {
  __shared__ typename Square::Memory memory;
  __shared__ SquareColumns columns;
  const auto across = static_cast<unsigned>(cols / Square::kSide);
  const std::int64_t number_down = blockIdx.x / across, number_across = blockIdx.x % across;
  const std::int64_t top = number_down * Square::kSide, left = number_across * Square::kSide;
  SquareVectors vectors;
#pragma unroll
  for (int half = 0; half < kSquareHalves; ++half) {
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      const T* const from = source + (top + Square::row() + row) * cols + left + column_of(half, 0);
      vectors[half][row] = as_bfloat16(load_vector<kCastWidth>(from));
    }
  }
  forget(vectors);
  const TileMaxima maxima = measured(vectors);
  show(maxima, columns);
  if (to.values != nullptr)
    cast_rows<kDType>(vectors, maxima, to.values + top * cols + left, cols,
                      to.scales + number_across * rows + top);
  __syncthreads();
  float* const inverse =
      to.transposed == nullptr ? nullptr : to.transposed_scales + number_down * cols + left;
  const std::int32_t largest = scale_columns<kDType>(columns, inverse);
  if (to.transposed != nullptr) {
    __syncthreads();
    forget(vectors);
    put_columns<kDType>(vectors, columns, memory);
    __syncthreads();
    Square::template store<true>(memory, top, left, rows, cols, to.transposed);
  }
  count_infinities(maxima.infinite, to.counts);
  raise_maximum(largest, to.maximum);
  count_zero_matrix(to);
}

// ---- launches ----

/// Of a part that begins at element `first` of a weight whose blocks have `maxima`; the number of its first square.
struct SquaresOfPart {
  WeightPart part;
  std::int64_t first, count;
};
SquaresOfPart squares_of(std::int64_t first, std::int64_t elements, const Tensor& maxima) {
  const std::int64_t of_row = maxima.cols * Square::kSide * Square::kSide;
  require(first >= 0 && first + elements <= maxima.rows * of_row, "a part of a weight that is not in it");
  if (elements == 0) return {};
  const std::int64_t row = first / of_row, end = ceil_div(first + elements, of_row);
  return {{row * of_row - first, elements, static_cast<unsigned>(maxima.cols)},
          row * maxima.cols,
          (end - row) * maxima.cols};
}

/// work(std::bool_constant<fits>)
template <class Work>
void with_vectors(bool fits, const Work& work) {
  if (fits) return work(std::true_type{});
  work(std::false_type{});
}

/// The scales of a matrix [rows, cols] in tiles; null where there is no such matrix.
float* tile_scales(const Tensor& scales, const Tensor& matrix, std::int64_t rows, std::int64_t cols,
                   const char* name) {
  if (!matrix) return nullptr;
  const auto shape = fp8_scale_shape(Fp8Scaling::tiles, rows, cols);
  return elements_of<float>(scales, DType::float32, shape.rows, shape.cols, name);
}

BlockScales block_scales(const Tensor& scales, std::int64_t rows, std::int64_t cols, const char* name) {
  const auto shape = fp8_scale_shape(Fp8Scaling::blocks, rows * kFp8Block, cols * kFp8Block);
  return {elements_of<float>(scales, DType::float32, shape.rows, shape.cols, name), shape.rows, shape.cols,
          cols};
}

std::int32_t* block_maxima(const Tensor& maxima) {
  return elements_of<std::int32_t>(maxima, DType::int32, maxima.rows, maxima.cols, "maxima");
}

}  // namespace

void CudaDevice::execute(const op::Fp8BlockMaximum& o) {
  const SquaresOfPart squares = squares_of(o.first, o.source.elements(), o.maxima);
  std::int32_t* const maxima = block_maxima(o.maxima);
  if (squares.count == 0) return;
  with_cast(o.source, DType::float8_e4m3fn, [&](const auto* source, auto) {
    using T = std::remove_cvref_t<decltype(*source)>;
    with_vectors(is_aligned(source + squares.part.begin, 16), [&](auto vectors) {
      launch(fp8_block_maximum_kernel<T, vectors()>, at_least_one(squares.count), dim3(Square::kThreads), 0,
             compute(), source, squares.part, maxima + squares.first);
    });
  });
}

void CudaDevice::execute(const op::Fp8BlockScales& o) {
  const std::int64_t rows = o.maxima.rows, cols = o.maxima.cols;
  const BlockScales weight = block_scales(o.scales, rows, cols, "scales");
  const BlockScales turned = block_scales(o.transposed_scales, cols, rows, "transposed_scales");
  const std::int64_t count = weight.rows * weight.row + turned.rows * turned.row;
  if (count == 0) return;
  launch(fp8_block_scales_kernel, at_least_one(ceil_div(count, kElementThreads)), dim3(kElementThreads), 0,
         compute(), block_maxima(o.maxima), weight, turned);
}

void CudaDevice::execute(const op::Fp8BlockCast& o) {
  require(o.values.dtype == DType::float8_e4m3fn, "weights are cast to float8_e4m3fn");
  const SquaresOfPart squares = squares_of(o.first, o.source.elements(), o.maxima);
  std::uint8_t* const values = fp8_elements(o.values, o.source.rows, o.source.cols, "values");
  const std::int32_t* const maxima = block_maxima(o.maxima);
  if (squares.count == 0) return;
  with_cast(o.source, DType::float8_e4m3fn, [&](const auto* source, auto) {
    using T = std::remove_cvref_t<decltype(*source)>;
    const bool fits =
        is_aligned(source + squares.part.begin, 16) && is_aligned(values + squares.part.begin, kCastWidth);
    with_vectors(fits, [&](auto vectors) {
      launch(fp8_block_cast_kernel<T, vectors()>, at_least_one(squares.count), dim3(Square::kThreads), 0,
             compute(), source, squares.part, maxima, squares.first, o.maxima.elements(), values,
             counters(o.counts));
    });
  });
}

void CudaDevice::execute(const op::Fp8TileCast& o) {
  const std::int64_t rows = o.source.rows, cols = o.source.cols;
  check_has_tiles(o.source);
  const DType to_dtype = fp8_cast_dtype(o.values, o.transposed);
  const TileOutputs to{fp8_elements(o.values, rows, cols, "values"),
                       tile_scales(o.scales, o.values, rows, cols, "scales"),
                       fp8_elements(o.transposed, cols, rows, "transposed"),
                       tile_scales(o.transposed_scales, o.transposed, cols, rows, "transposed_scales"),
                       elements_of<std::int32_t>(o.maximum, DType::int32, 1, 2, "maximum"),
                       counters(o.counts)};
  require(is_aligned(o.source.data, 16) && is_aligned(to.values, kCastWidth) && is_aligned(to.scales, 16) &&
              is_aligned(to.transposed, 16),
          "matrices in tiles, and their scales, begin at multiples of 16 bytes");
  const std::int64_t squares = rows / kFp8Block * (cols / kFp8Block);
  if (squares == 0) return;
  with_cast(o.source, to_dtype, [&](const auto* source, auto dtype) {
    using T = std::remove_cvref_t<decltype(*source)>;
    launch(fp8_tile_cast_kernel<T, dtype()>, at_least_one(squares), dim3(Square::kThreads), 0, compute(),
           source, rows, cols, to);
  });
}

}  // namespace llampi::device::cuda
