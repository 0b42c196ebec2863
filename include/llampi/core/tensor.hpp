// SPDX-License-Identifier: Apache-2.0
// Element types and non-owning views of contiguous, row-major matrices.
#pragma once

#include <cstddef>
#include <cstdint>

#include "llampi/core/error.hpp"

namespace llampi {

/// Whether a result is written over what its memory holds, or added to it.
enum class Accumulate : bool { no, yes };

enum class DType : std::uint8_t {
  float64,
  float32,
  bfloat16,
  float16,
  int64,
  int32,
  float8_e4m3fn,  ///< float8.hpp
  float8_e5m2,
  int8_blocks,  ///< int8_blocks.hpp: a block of elements has a size, an element has none
};

/// Of int8_blocks: elements that share a scale, and what they take with it.
inline constexpr std::int64_t kInt8BlockElements = 128, kInt8BlockBytes = 132;

/// Bytes of one element; of int8_blocks there is no such number.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
      return 2;
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
      return 1;
    case DType::int8_blocks:
      break;
  }
  throw Error("internal error: elements in blocks have no size of their own");
}

/// Bytes of so many elements: whole blocks of int8_blocks.
inline std::int64_t bytes_of(DType dtype, std::int64_t elements) {
  if (dtype != DType::int8_blocks) return elements * size_of(dtype);
  require(elements % kInt8BlockElements == 0, "a part of a block");
  return elements / kInt8BlockElements * kInt8BlockBytes;
}

/// Half of the distance between 1 and the next number: rounding to nearest changes a number by at most so
/// much of itself. Of floating-point dtypes.
constexpr double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return 0x1p-24;
    case DType::bfloat16:
      return 0x1p-8;
    case DType::float16:
      return 0x1p-11;
    case DType::float8_e4m3fn:
      return 0x1p-4;
    case DType::float8_e5m2:
      return 0x1p-3;
    default:
      return 0x1p-53;
  }
}

/// "float32", "bfloat16", ...: the words of PyTorch and of our configuration.
const char* to_string(DType dtype);

template <class T>
inline constexpr DType dtype_of = DType::float32;
template <>
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::int64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::int32;

/// A view of [rows, cols] elements, contiguous and row-major; a vector has one row. Owns nothing.
/// The memory may be a device's: only `device` and `comm` look at it.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::float32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  std::int64_t elements() const { return rows * cols; }
  std::int64_t bytes() const { return bytes_of(dtype, elements()); }
  explicit operator bool() const { return data != nullptr; }

  /// The elements as T, which must be the tensor's own type.
  template <class T>
  T* as() const {
    require(dtype == dtype_of<T>, "tensor read as another type than its own");
    return static_cast<T*>(data);
  }

  /// Rows [begin, end).
  Tensor slice_rows(std::int64_t begin, std::int64_t end) const {
    return {static_cast<std::byte*>(data) + bytes_of(dtype, begin * cols), dtype, end - begin, cols};
  }
  /// Elements [begin, end) of the flattened view, as one row.
  Tensor slice(std::int64_t begin, std::int64_t end) const {
    return {static_cast<std::byte*>(data) + bytes_of(dtype, begin), dtype, 1, end - begin};
  }
};

template <class T>
Tensor tensor(T* data, std::int64_t rows, std::int64_t cols) {
  return {data, dtype_of<T>, rows, cols};
}

}  // namespace llampi
