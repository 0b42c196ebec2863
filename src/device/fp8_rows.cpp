// SPDX-License-Identifier: Apache-2.0
#include "device/fp8_rows.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "device/fp8_checks.hpp"
#include "device/host_device.hpp"
#include "llampi/core/float8.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/integers.hpp"

namespace llampi::device {
namespace {

/// use(read), where read(i) is the element as a bfloat16 that has become a float32.
template <class Use>
auto with_bfloat16(const Tensor& source, const Use& use) {
  const auto rounded = [](auto value) { return from_bfloat16(to_bfloat16(static_cast<float>(value))); };
  switch (source.dtype) {
    case DType::float64: {
      const auto* values = static_cast<const double*>(source.data);
      return use([=](std::int64_t i) { return rounded(values[i]); });
    }
    case DType::float32: {
      const auto* values = static_cast<const float*>(source.data);
      return use([=](std::int64_t i) { return rounded(values[i]); });
    }
    case DType::bfloat16: {
      const auto* values = static_cast<const std::uint16_t*>(source.data);
      return use([=](std::int64_t i) { return from_bfloat16(values[i]); });
    }
    default:
      throw Error(fmt::format("this device has no kernels that cast {} to 8 bits", to_string(source.dtype)));
  }
}

constexpr std::int32_t kInfiniteBits = 0x7F800000;

std::int32_t magnitude_bits(float value) { return std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF; }

std::array<float, 256> widened(Float8Format format) {
  std::array<float, 256> values{};
  for (int bits = 0; bits < 256; ++bits)
    values[static_cast<std::size_t>(bits)] = from_float8(format, static_cast<std::uint8_t>(bits));
  return values;
}

std::uint8_t* bytes_of(const Tensor& tensor) { return static_cast<std::uint8_t*>(tensor.data); }

/// As Fp8Scaling::tensor.
void write_scale(int exponent, float* to) {
  to[0] = power_of_two(-exponent);
  to[1] = power_of_two(exponent);
  to[2] = to[3] = 0;
}

}  // namespace

std::int32_t fp8_maximum_bits(const Tensor& source, std::int64_t begin, std::int64_t end) {
  return with_bfloat16(source, [=](const auto& read) {
    std::int32_t largest = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t bits = magnitude_bits(read(i));
      largest = std::max(largest, bits < kInfiniteBits ? bits : 0);
    }
    return largest;
  });
}

int begin_fp8_cast(const op::Fp8Cast& o) {
  const auto [rows, cols] = std::pair(o.source.rows, o.source.cols);
  const DType dtype = fp8_cast_dtype(o.values, o.transposed);
  if (o.values) check_is_float8(o.values, rows, cols, "values");
  if (o.transposed) check_is_float8(o.transposed, cols, rows, "transposed");
  const std::int32_t maximum = *elements_of<std::int32_t>(o.maximum, 1, 1, "maximum");
  const int exponent = float8_scale_exponent(float8_format(dtype), maximum);
  if (o.scale) {
    const auto shape = fp8_scale_shape(Fp8Scaling::tensor, rows, cols);
    write_scale(exponent, elements_of<float>(o.scale, shape.rows, shape.cols, "scale"));
  }
  if (o.counts != nullptr && maximum == 0) ++o.counts->zero_scales;
  return exponent;
}

std::int64_t fp8_cast_rows(const op::Fp8Cast& o, int scale_exponent, const Tensor& rows, std::int64_t first) {
  const Float8Format format = float8_format(fp8_cast_dtype(o.values, o.transposed));
  const float scale = power_of_two(scale_exponent);
  const std::int64_t all_rows = o.source.rows, cols = o.source.cols;
  std::uint8_t *const values = bytes_of(o.values), *const transposed = bytes_of(o.transposed);
  return with_bfloat16(rows, [&](const auto& read) {
    std::int64_t saturated = 0;
    for (std::int64_t r = first; r < first + rows.rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const float value = read((r - first) * cols + c);
        saturated += magnitude_bits(value) == kInfiniteBits ? 1 : 0;
        const std::uint8_t bits = to_float8(format, value * scale);
        if (values != nullptr) values[r * cols + c] = bits;
        if (transposed != nullptr) transposed[c * all_rows + r] = bits;
      }
    }
    return saturated;
  });
}

void fp8_scales(const op::Fp8Scales& o) {
  const std::int32_t* const maxima = elements_of<std::int32_t>(o.maxima, 1, o.scales.rows, "maxima");
  float* const scales = elements_of<float>(o.scales, o.scales.rows, 4, "scales");
  for (std::int64_t i = 0; i < o.scales.rows; ++i)
    write_scale(float8_scale_exponent(kE4m3, maxima[i]), scales + 4 * i);
}

void fp8_transpose_rows(const op::Fp8Transpose& o, std::int64_t begin, std::int64_t end) {
  check_is_float8(o.source, o.source.rows, o.source.cols, "source");
  check_is_float8(o.transposed, o.source.cols, o.source.rows, "transposed");
  const std::int64_t rows = o.source.rows, cols = o.source.cols;
  const std::uint8_t* const from = bytes_of(o.source);
  std::uint8_t* const to = bytes_of(o.transposed);
  for (std::int64_t c = begin; c < end; ++c) {
    for (std::int64_t r = 0; r < rows; ++r) to[c * rows + r] = from[r * cols + c];
  }
}

namespace {

/// [first, first + elements) of a weight whose blocks have `maxima`, as rows of blocks [begin, end).
struct BlockRows {
  std::int64_t cols, begin, end;
};
BlockRows block_rows_of(std::int64_t first, std::int64_t elements, const Tensor& maxima) {
  elements_of<std::int32_t>(maxima, maxima.rows, maxima.cols, "maxima");
  const std::int64_t cols = maxima.cols * kFp8Block, of_row = cols * kFp8Block;
  require(first >= 0 && first + elements <= maxima.rows * of_row, "a part of a weight that is not in it");
  return {cols, first / of_row, ceil_div(first + elements, of_row)};
}

/// body(element of the part, maximum of its block) for those in rows of blocks [begin, end) of the part.
template <class Body>
void for_each_in_blocks(std::int64_t first, std::int64_t elements, const Tensor& maxima, std::int64_t begin,
                        std::int64_t end, const Body& body) {
  const BlockRows rows = block_rows_of(first, elements, maxima);
  const std::int64_t of_row = rows.cols * kFp8Block;
  auto* const grid = static_cast<std::int32_t*>(maxima.data);
  const std::int64_t from = std::max(first, (rows.begin + begin) * of_row);
  const std::int64_t to = std::min(first + elements, (rows.begin + end) * of_row);
  for (std::int64_t i = from; i < to; ++i)
    body(i - first, grid[i / of_row * maxima.cols + i % rows.cols / kFp8Block]);
}

float* scales_of(const Tensor& scales, Fp8Scaling scaling, std::int64_t rows, std::int64_t cols) {
  const auto shape = fp8_scale_shape(scaling, rows, cols);
  return elements_of<float>(scales, shape.rows, shape.cols, "scales");
}

/// scales[r, c] = 2^-e for the maximum of block [r, c] of rows x cols; padding of a row is 1.
template <class MaximumOf>
void write_block_scales(const Tensor& scales, std::int64_t rows, std::int64_t cols,
                        const MaximumOf& maximum_of) {
  float* const to = scales_of(scales, Fp8Scaling::blocks, rows * kFp8Block, cols * kFp8Block);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < scales.cols; ++c)
      to[r * scales.cols + c] =
          c < cols ? power_of_two(-float8_scale_exponent(kE4m3, maximum_of(r, c))) : 1.0F;
  }
}

/// The maxima of the tiles of a square: along its rows and along its columns.
struct SquareMaxima {
  std::array<std::int32_t, kFp8Block> rows{}, cols{};
};

}  // namespace

std::int64_t fp8_block_rows(const op::Fp8BlockMaximum& o) {
  const BlockRows rows = block_rows_of(o.first, o.source.elements(), o.maxima);
  return rows.end - rows.begin;
}

std::int64_t fp8_block_rows(const op::Fp8BlockCast& o) {
  check_is_float8(o.values, o.source.rows, o.source.cols, "values");
  require(o.values.dtype == DType::float8_e4m3fn, "weights are cast to float8_e4m3fn");
  const BlockRows rows = block_rows_of(o.first, o.source.elements(), o.maxima);
  return rows.end - rows.begin;
}

void fp8_block_maximum(const op::Fp8BlockMaximum& o, std::int64_t begin, std::int64_t end) {
  with_bfloat16(o.source, [&](const auto& read) {
    for_each_in_blocks(o.first, o.source.elements(), o.maxima, begin, end,
                       [&](std::int64_t i, std::int32_t& maximum) {
                         const std::int32_t bits = magnitude_bits(read(i));
                         if (bits < kInfiniteBits) maximum = std::max(maximum, bits);
                       });
  });
}

std::int64_t fp8_block_cast(const op::Fp8BlockCast& o, std::int64_t begin, std::int64_t end) {
  std::uint8_t* const values = bytes_of(o.values);
  return with_bfloat16(o.source, [&](const auto& read) {
    std::int64_t saturated = 0;
    for_each_in_blocks(o.first, o.source.elements(), o.maxima, begin, end,
                       [&](std::int64_t i, std::int32_t maximum) {
                         const float value = read(i);
                         saturated += magnitude_bits(value) == kInfiniteBits ? 1 : 0;
                         const float scale = power_of_two(float8_scale_exponent(kE4m3, maximum));
                         values[i] = to_float8(kE4m3, value * scale);
                       });
    return saturated;
  });
}

bool is_zero_in_blocks(const op::Fp8BlockCast& o) {
  const auto* const maxima = elements_of<std::int32_t>(o.maxima, o.maxima.rows, o.maxima.cols, "maxima");
  return std::all_of(maxima, maxima + o.maxima.elements(), [](std::int32_t bits) { return bits == 0; });
}

void fp8_block_scales(const op::Fp8BlockScales& o) {
  const std::int64_t rows = o.maxima.rows, cols = o.maxima.cols;
  const auto* const maxima = elements_of<std::int32_t>(o.maxima, rows, cols, "maxima");
  write_block_scales(o.scales, rows, cols,
                     [=](std::int64_t r, std::int64_t c) { return maxima[r * cols + c]; });
  write_block_scales(o.transposed_scales, cols, rows,
                     [=](std::int64_t r, std::int64_t c) { return maxima[c * cols + r]; });
}

void check_fp8_tile_cast(const op::Fp8TileCast& o) {
  const std::int64_t rows = o.source.rows, cols = o.source.cols;
  check_has_tiles(o.source);
  fp8_cast_dtype(o.values, o.transposed);
  elements_of<std::int32_t>(o.maximum, 1, 2, "maximum");
  if (o.values) {
    check_is_float8(o.values, rows, cols, "values");
    scales_of(o.scales, Fp8Scaling::tiles, rows, cols);
  }
  if (o.transposed) {
    check_is_float8(o.transposed, cols, rows, "transposed");
    scales_of(o.transposed_scales, Fp8Scaling::tiles, cols, rows);
  }
}

Fp8TileCastPart fp8_tile_cast(const op::Fp8TileCast& o, std::int64_t begin, std::int64_t end) {
  const std::int64_t rows = o.source.rows, cols = o.source.cols;
  const Float8Format format = float8_format(fp8_cast_dtype(o.values, o.transposed));
  std::uint8_t *const values = bytes_of(o.values), *const transposed = bytes_of(o.transposed);
  auto* const scales = static_cast<float*>(o.scales.data);
  auto* const transposed_scales = static_cast<float*>(o.transposed_scales.data);
  return with_bfloat16(o.source, [&](const auto& read) {
    Fp8TileCastPart part;
    const auto cast_square = [&](std::int64_t top, std::int64_t left) {
      const auto element = [&](std::int64_t r, std::int64_t c) { return read((top + r) * cols + left + c); };
      SquareMaxima maxima;
      for (std::int64_t r = 0; r < kFp8Block; ++r) {
        for (std::int64_t c = 0; c < kFp8Block; ++c) {
          const std::int32_t bits = magnitude_bits(element(r, c));
          part.saturated += bits == kInfiniteBits ? 1 : 0;
          if (bits >= kInfiniteBits) continue;
          for (auto* const maximum : {&maxima.rows[static_cast<std::size_t>(r)],
                                      &maxima.cols[static_cast<std::size_t>(c)], &part.maximum})
            *maximum = std::max(*maximum, bits);
        }
      }
      const auto exponent = [&](std::int32_t maximum) { return float8_scale_exponent(format, maximum); };
      for (std::int64_t i = 0; i < kFp8Block; ++i) {
        const int of_row = exponent(maxima.rows[static_cast<std::size_t>(i)]);
        const int of_col = exponent(maxima.cols[static_cast<std::size_t>(i)]);
        if (values != nullptr) scales[left / kFp8Block * rows + top + i] = power_of_two(-of_row);
        if (transposed != nullptr)
          transposed_scales[top / kFp8Block * cols + left + i] = power_of_two(-of_col);
        for (std::int64_t j = 0; j < kFp8Block; ++j) {
          if (values != nullptr)
            values[(top + i) * cols + left + j] = to_float8(format, element(i, j) * power_of_two(of_row));
          if (transposed != nullptr)
            transposed[(left + i) * rows + top + j] = to_float8(format, element(j, i) * power_of_two(of_col));
        }
      }
    };
    for (std::int64_t top = begin * kFp8Block; top < end * kFp8Block; top += kFp8Block) {
      for (std::int64_t left = 0; left < cols; left += kFp8Block) cast_square(top, left);
    }
    return part;
  });
}

void end_fp8_tile_cast(const op::Fp8TileCast& o, const Fp8TileCastPart& all) {
  static_cast<std::int32_t*>(o.maximum.data)[0] = all.maximum;
  if (o.counts == nullptr) return;
  o.counts->saturated += all.saturated;
  o.counts->zero_scales += all.maximum == 0 ? 1 : 0;
}

template <class T>
void fp8_widen(const Tensor& source, const Tensor& scales, std::int64_t begin, std::int64_t end, T* values) {
  static const std::array<float, 256> kTables[] = {widened(kE4m3), widened(kE5m2)};
  const auto& table = kTables[source.dtype == DType::float8_e5m2 ? 1 : 0];
  const std::int64_t k = source.cols;
  const Fp8Scaling scaling = fp8_scaling_of(scales, source.rows, k);
  const auto* const factors = elements_of<float>(scales, scales.rows, scales.cols, "scales");
  const auto factor_at = [&](std::int64_t r, std::int64_t c) {
    if (scaling == Fp8Scaling::tensor) return factors[0];
    const std::int64_t row = scaling == Fp8Scaling::tiles ? c / kFp8Block : r / kFp8Block;
    return factors[row * scales.cols + (scaling == Fp8Scaling::tiles ? r : c / kFp8Block)];
  };
  for (std::int64_t r = begin; r < end; ++r) {
    const std::uint8_t* const bits = bytes_of(source) + r * k;
    for (std::int64_t first = 0; first < k; first += kFp8Block) {
      const T factor = static_cast<T>(factor_at(r, first));
      for (std::int64_t c = first; c < std::min(k, first + kFp8Block); ++c)
        *values++ = static_cast<T>(table[bits[c]]) * factor;
    }
  }
}
template void fp8_widen(const Tensor&, const Tensor&, std::int64_t, std::int64_t, float*);
template void fp8_widen(const Tensor&, const Tensor&, std::int64_t, std::int64_t, double*);

}  // namespace llampi::device
