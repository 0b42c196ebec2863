// SPDX-License-Identifier: Apache-2.0
// What goes before products in 8 bits: scales, casts, transposes. All of it moves bytes: times at 3.35 TB/s are of
// 8192 x 4096 elements.
#include <algorithm>
#include <type_traits>

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/fp8_tiles.cuh"
#include "device/cuda/magnitudes.cuh"
#include "device/fp8_checks.hpp"

#include "llampi/core/integers.hpp"

namespace llampi::device::cuda {
namespace {

/// Vectors that a thread has under way.
constexpr int kFp8AtOnce = 4;

// ---- the largest magnitude ----
// 2 bytes an element in 16 bits: 67 MB, 20 us.

/// `head` single elements, then vectors from an aligned address on, then single elements.
template <class T>
__global__ void __launch_bounds__(kElementThreads)
    fp8_maximum_kernel(const T* source, std::int64_t head, std::int64_t vectors, std::int64_t elements,
                       std::int32_t* maximum) {
  constexpr int N = kWidth<T>;
  const std::int64_t stride = std::int64_t{gridDim.x} * kElementThreads;
  const std::int64_t first = std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  std::int32_t largest = 0;
  std::int64_t i = first;
  for (; i + (kFp8AtOnce - 1) * stride < vectors; i += kFp8AtOnce * stride) {
    Vector<T, N> at_once[kFp8AtOnce];
#pragma unroll
    for (int j = 0; j < kFp8AtOnce; ++j) at_once[j] = load_vector<N>(source + head + (i + j * stride) * N);
#pragma unroll
    for (int j = 0; j < kFp8AtOnce; ++j) largest = max(largest, magnitude_of(at_once[j]));
  }
  for (; i < vectors; i += stride)
    largest = max(largest, magnitude_of(load_vector<N>(source + head + i * N)));
  for (i = first; i < elements - vectors * N; i += stride) {
    const std::int64_t at = i < head ? i : i + vectors * N;
    largest = max(largest, magnitude_of<T>(to_float(source[at])));
  }
  raise_maximum(largest, maximum);
}

__global__ void __launch_bounds__(kElementThreads)
    fp8_scales_kernel(const std::int32_t* maxima, std::int64_t count, float* scales) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kElementThreads + threadIdx.x;
  if (i >= count) return;
  write_scale(float8_scale_exponent(float8_format(DType::float8_e4m3fn), maxima[i]), scales + 4 * i);
}

// ---- casts ----
// From 16 bits 3 bytes an element, 101 MB, 30 us; with the transpose 4, 134 MB, 40 us.

constexpr std::int64_t kCastPiece = std::int64_t{kElementThreads} * kFp8AtOnce * kCastWidth;  ///< of a block

/// A block has kCastPiece elements: the vectors of them, which begin `head` elements later; the first block the single
/// elements before and after all vectors, too.
template <class T, DType kDType>
__global__ void __launch_bounds__(kElementThreads)
    fp8_cast_kernel(const T* source, const std::int32_t* maximum, std::int64_t head, std::int64_t vectors,
                    std::int64_t elements, const CastOutputs to) {
  Caster<kDType> cast(maximum);
  const std::int64_t first = blockIdx.x * (kCastPiece / kCastWidth) + threadIdx.x;
  Vector<T, kCastWidth> at_once[kFp8AtOnce];
#pragma unroll
  for (int j = 0; j < kFp8AtOnce; ++j) {
    const std::int64_t i = first + j * kElementThreads;
    if (i < vectors) at_once[j] = load_vector<kCastWidth>(source + head + i * kCastWidth);
  }
#pragma unroll
  for (int j = 0; j < kFp8AtOnce; ++j) {
    const std::int64_t i = first + j * kElementThreads;
    if (i < vectors)
      store_unit(reinterpret_cast<uint2*>(to.values + head + i * kCastWidth), cast(at_once[j]));
  }
  if (blockIdx.x == 0) {
    for (std::int64_t i = threadIdx.x; i < elements - vectors * kCastWidth; i += kElementThreads) {
      const std::int64_t at = i < head ? i : i + vectors * kCastWidth;
      to.values[at] = cast(source[at]);
    }
  }
  cast.finish(to);
}

/// The same where source and values are not aligned alike.
template <class T, DType kDType>
__global__ void __launch_bounds__(kElementThreads)
    fp8_cast_singly_kernel(const T* source, const std::int32_t* maximum, std::int64_t elements,
                           const CastOutputs to) {
  Caster<kDType> cast(maximum);
  for (int j = 0; j < kFp8AtOnce * kCastWidth; ++j) {
    const std::int64_t i = blockIdx.x * kCastPiece + j * kElementThreads + threadIdx.x;
    if (i < elements) to.values[i] = cast(source[i]);
  }
  cast.finish(to);
}

// ---- transposes ----
// 2 bytes an element: 67 MB, 20 us.

constexpr int kByteWidth = 16;  ///< columns of a thread

template <bool kVectors>
__global__ void __launch_bounds__(ByteTile<kByteWidth>::kThreads)
    fp8_transpose_kernel(const std::uint8_t* source, std::int64_t rows, std::int64_t cols, int tiles_across,
                         std::uint8_t* transposed) {
  using Tile = ByteTile<kByteWidth>;
  __shared__ typename Tile::Memory memory;
  const std::int64_t first_row = std::int64_t{blockIdx.x / static_cast<unsigned>(tiles_across)} * Tile::kSide;
  const std::int64_t first_column =
      std::int64_t{blockIdx.x % static_cast<unsigned>(tiles_across)} * Tile::kSide;
  uint4 units[4];
#pragma unroll
  for (int row = 0; row < 4; ++row) {
    const std::int64_t r = first_row + Tile::row() + row, c = first_column + Tile::column();
    units[row] = uint4{0, 0, 0, 0};
    if constexpr (kVectors) {
      if (r < rows && c < cols) units[row] = *reinterpret_cast<const uint4*>(source + r * cols + c);
    } else {
      std::uint32_t words[4] = {};
      for (int i = 0; i < kByteWidth; ++i) {
        if (r < rows && c + i < cols)
          words[i / 4] |= std::uint32_t{source[r * cols + c + i]} << (8 * (i % 4));
      }
      units[row] = uint4{words[0], words[1], words[2], words[3]};
    }
  }
  std::uint32_t words[4][4] = {{units[0].x, units[1].x, units[2].x, units[3].x},
                               {units[0].y, units[1].y, units[2].y, units[3].y},
                               {units[0].z, units[1].z, units[2].z, units[3].z},
                               {units[0].w, units[1].w, units[2].w, units[3].w}};
#pragma unroll
  for (int i = 0; i < 4; ++i) Tile::put(memory, Tile::column() + 4 * i, words[i]);
  __syncthreads();
  Tile::template store<kVectors>(memory, first_row, first_column, rows, cols, transposed);
}

// ---- launches ----

template <DType kDType, class T>
void launch_cast(const T* source, std::int64_t elements, const std::int32_t* maximum, const CastOutputs& to,
                 cudaStream_t stream) {
  const auto address = reinterpret_cast<std::uintptr_t>(to.values);
  const auto head = static_cast<std::int64_t>((kCastWidth - address % kCastWidth) % kCastWidth);
  const dim3 blocks = at_least_one(ceil_div(elements, kCastPiece));
  if (!is_aligned(source + head, 16)) {
    launch(fp8_cast_singly_kernel<T, kDType>, blocks, dim3(kElementThreads), 0, stream, source, maximum,
           elements, to);
  } else {
    const std::int64_t first = std::min(head, elements);
    launch(fp8_cast_kernel<T, kDType>, blocks, dim3(kElementThreads), 0, stream, source, maximum, first,
           (elements - first) / kCastWidth, elements, to);
  }
}

}  // namespace

void CudaDevice::execute(const op::Fp8Maximum& o) {
  auto* const largest = elements_of<std::int32_t>(o.maximum, DType::int32, 1, 1, "maximum");
  const std::int64_t elements = o.source.elements();
  if (elements == 0) return;
  with_cast(o.source, DType::float8_e4m3fn, [&](const auto* source, auto) {
    using T = std::remove_cvref_t<decltype(*source)>;
    const auto behind =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(source) / sizeof(T) % kWidth<T>);
    const std::int64_t head = std::min((kWidth<T> - behind) % kWidth<T>, elements);
    const std::int64_t vectors = (elements - head) / kWidth<T>;
    // As many blocks as there is room for at a time.
    const std::int64_t room = std::int64_t{8} * std::max(properties_.multiProcessorCount, 1);
    launch(fp8_maximum_kernel<T>,
           at_least_one(std::min(ceil_div(vectors, kElementThreads * kFp8AtOnce), room)),
           dim3(kElementThreads), 0, compute(), source, head, vectors, elements, largest);
  });
}

void CudaDevice::execute(const op::Fp8Scales& o) {
  const std::int64_t count = o.scales.rows;
  const auto* maxima = elements_of<std::int32_t>(o.maxima, DType::int32, 1, count, "maxima");
  auto* scales = elements_of<float>(o.scales, DType::float32, count, 4, "scales");
  if (count == 0) return;
  launch(fp8_scales_kernel, at_least_one(ceil_div(count, kElementThreads)), dim3(kElementThreads), 0,
         compute(), maxima, count, scales);
}

void CudaDevice::execute(const op::Fp8Cast& o) {
  const std::int64_t rows = o.source.rows, cols = o.source.cols;
  const DType to_dtype = fp8_cast_dtype(o.values, o.transposed);
  const std::int32_t* const maximum = cast_maximum(o);
  const CastOutputs to = cast_outputs(o, rows, cols);
  with_cast(o.source, to_dtype, [&](const auto* source, auto dtype) {
    using T = std::remove_cvref_t<decltype(*source)>;
    if (o.transposed)
      return launch_cast_tiles<dtype()>(MatrixSource<T>{source, rows, cols}, maximum, to, compute());
    launch_cast<dtype()>(source, rows * cols, maximum, to, compute());
  });
}

void CudaDevice::execute(const op::Fp8Transpose& o) {
  constexpr std::int64_t kSide = ByteTile<kByteWidth>::kSide;
  const std::int64_t rows = o.source.rows, cols = o.source.cols;
  const std::uint8_t* const source = fp8_elements(o.source, rows, cols, "source");
  std::uint8_t* const transposed = fp8_elements(o.transposed, cols, rows, "transposed");
  require(o.transposed.dtype == o.source.dtype, "a transpose of another dtype");
  if (rows * cols == 0) return;
  const bool fits =
      rows % 16 == 0 && cols % kByteWidth == 0 && is_aligned(source, 16) && is_aligned(transposed, 16);
  const std::int64_t across = ceil_div(cols, kSide);
  launch(fits ? fp8_transpose_kernel<true> : fp8_transpose_kernel<false>,
         at_least_one(ceil_div(rows, kSide) * across), dim3(ByteTile<kByteWidth>::kThreads), 0, compute(),
         source, rows, cols, static_cast<int>(across), transposed);
}

}  // namespace llampi::device::cuda
