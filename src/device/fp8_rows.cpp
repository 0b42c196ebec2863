// SPDX-License-Identifier: Apache-2.0
#include "device/fp8_rows.hpp"

#include <array>
#include <bit>
#include <cmath>

#include "device/host_device.hpp"
#include "llampi/core/float8.hpp"
#include "llampi/core/half.hpp"

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

void check_is_float8(const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* name) {
  if (!is_float8(tensor.dtype) || tensor.rows != rows || tensor.cols != cols)
    throw Error(fmt::format("internal error: {} is {} [{}, {}], not [{}, {}] in 8 bits", name,
                            to_string(tensor.dtype), tensor.rows, tensor.cols, rows, cols));
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
  if (o.values) check_is_float8(o.values, rows, cols, "values");
  if (o.transposed) check_is_float8(o.transposed, cols, rows, "transposed");
  require(o.values || o.transposed, "a cast to nothing");
  require(!o.values || !o.transposed || o.values.dtype == o.transposed.dtype, "a cast to two dtypes");
  const std::int32_t maximum = *elements_of<std::int32_t>(o.maximum, 1, 1, "maximum");
  const DType dtype = o.values ? o.values.dtype : o.transposed.dtype;
  const int exponent = float8_scale_exponent(float8_format(dtype), maximum);
  if (o.scale) {
    float* const scale = elements_of<float>(o.scale, 1, 2, "scale");
    scale[0] = power_of_two(exponent);
    scale[1] = power_of_two(-exponent);
  }
  if (o.counts != nullptr && maximum == 0) ++o.counts->zero_scales;
  return exponent;
}

std::int64_t fp8_cast_rows(const op::Fp8Cast& o, int scale_exponent, std::int64_t begin, std::int64_t end) {
  const Float8Format format = float8_format(o.values ? o.values.dtype : o.transposed.dtype);
  const float scale = power_of_two(scale_exponent);
  const std::int64_t rows = o.source.rows, cols = o.source.cols;
  std::uint8_t *const values = bytes_of(o.values), *const transposed = bytes_of(o.transposed);
  return with_bfloat16(o.source, [&](const auto& read) {
    std::int64_t saturated = 0;
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const float value = read(r * cols + c);
        saturated += magnitude_bits(value) == kInfiniteBits ? 1 : 0;
        const std::uint8_t bits = to_float8(format, value * scale);
        if (values != nullptr) values[r * cols + c] = bits;
        if (transposed != nullptr) transposed[c * rows + r] = bits;
      }
    }
    return saturated;
  });
}

void fp8_scales(const op::Fp8Scales& o) {
  const std::int32_t* const maxima = elements_of<std::int32_t>(o.maxima, 1, o.scales.rows, "maxima");
  float* const scales = elements_of<float>(o.scales, o.scales.rows, 2, "scales");
  for (std::int64_t i = 0; i < o.scales.rows; ++i) {
    const int exponent = float8_scale_exponent(kE4m3, maxima[i]);
    scales[2 * i] = power_of_two(exponent);
    scales[2 * i + 1] = power_of_two(-exponent);
  }
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

void check_fp8_product(const op::Fp8Product& o) {
  const std::int64_t m = o.y.rows, n = o.y.cols, k = o.a.cols;
  check_is_float8(o.a, m, k, "a");
  check_is_float8(o.b, n, k, "b");
  require(m % 16 == 0 && n % 16 == 0 && k % 16 == 0, "the sides of a product in 8 bits are multiples of 16");
  require(o.a.dtype != DType::float8_e5m2 || o.b.dtype != DType::float8_e5m2,
          "there is no product of float8_e5m2 and float8_e5m2");
  require(!o.residual || o.accumulate_y == Accumulate::no, "a product adds to one matrix only");
}

template <class T>
void fp8_widen(const Tensor& source, std::int64_t begin, std::int64_t end, T factor, T* values) {
  static const std::array<float, 256> kTables[] = {widened(kE4m3), widened(kE5m2)};
  const auto& table = kTables[source.dtype == DType::float8_e5m2 ? 1 : 0];
  const std::uint8_t* const bits = bytes_of(source);
  for (std::int64_t i = begin; i < end; ++i) values[i - begin] = static_cast<T>(table[bits[i]]) * factor;
}
template void fp8_widen(const Tensor&, std::int64_t, std::int64_t, float, float*);
template void fp8_widen(const Tensor&, std::int64_t, std::int64_t, double, double*);

}  // namespace llampi::device
