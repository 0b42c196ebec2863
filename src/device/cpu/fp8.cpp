// SPDX-License-Identifier: Apache-2.0
// Products in 8 bits: the numbers that a GPU multiplies, in float32 products. What both are defined by, not a way to
// be fast.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"
#include "device/fp8_checks.hpp"
#include "device/fp8_rows.hpp"

namespace llampi::device {

void CpuDevice::execute(const op::Fp8Maximum& o) {
  std::int32_t& maximum = *elements_of<std::int32_t>(o.maximum, 1, 1, "maximum");
  std::vector<std::int32_t> of_part(static_cast<std::size_t>(threads_), 0);
  parallel_ranges(threads_, o.source.elements(), 1, [&](std::int64_t begin, std::int64_t end, int part) {
    of_part[static_cast<std::size_t>(part)] = fp8_maximum_bits(o.source, begin, end);
  });
  maximum = std::max(maximum, *std::ranges::max_element(of_part));
}

void CpuDevice::execute(const op::Fp8Scales& o) { fp8_scales(o); }

void CpuDevice::execute(const op::Fp8Cast& o) {
  const int exponent = begin_fp8_cast(o);
  std::atomic<std::int64_t> saturated{0};
  // A vector is cut by columns, which its rows are then.
  op::Fp8Cast rows = o;
  if (o.source.rows == 1 && !o.transposed) {
    std::swap(rows.source.rows, rows.source.cols);
    std::swap(rows.values.rows, rows.values.cols);
  }
  parallel_ranges(threads_, rows.source.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    saturated += fp8_cast_rows(rows, exponent, rows.source.slice_rows(begin, end), begin);
  });
  if (o.counts != nullptr) o.counts->saturated += saturated;
}

void CpuDevice::measure_rows(const Rows& rows, const Tensor& maximum) const {
  std::int32_t& largest = *elements_of<std::int32_t>(maximum, 1, 1, "maximum");
  std::vector<std::int32_t> of_part(static_cast<std::size_t>(threads_), 0);
  parallel_ranges(threads_, rows.rows, 1, [&](std::int64_t begin, std::int64_t end, int part) {
    std::vector<float> row(static_cast<std::size_t>(rows.cols));
    for (std::int64_t t = begin; t < end; ++t) {
      rows.compute(t, row.data());
      std::int32_t& bits = of_part[static_cast<std::size_t>(part)];
      bits = std::max(bits, fp8_maximum_bits({row.data(), DType::float32, 1, rows.cols}, 0, rows.cols));
    }
  });
  largest = std::max(largest, *std::ranges::max_element(of_part));
}

void CpuDevice::cast_rows(const Rows& rows, op::Fp8Cast cast) const {
  require(!cast.source, "the cast of what is computed has a source");
  cast.source = {nullptr, DType::float32, rows.rows, rows.cols};
  const int exponent = begin_fp8_cast(cast);
  std::atomic<std::int64_t> saturated{0};
  parallel_ranges(threads_, rows.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    std::vector<float> row(static_cast<std::size_t>(rows.cols));
    for (std::int64_t t = begin; t < end; ++t) {
      rows.compute(t, row.data());
      saturated += fp8_cast_rows(cast, exponent, {row.data(), DType::float32, 1, rows.cols}, t);
    }
  });
  if (cast.counts != nullptr) cast.counts->saturated += saturated;
}

void CpuDevice::execute(const op::RmsNormCast& o) {
  const std::int64_t rows = o.x.rows, hidden = o.x.cols;
  const float* x = floats(o.x, rows, hidden, "x");
  const float* weight = floats(o.weight, 1, hidden, "weight");
  const float* inverse_rms = floats(o.inverse_rms, 1, rows, "inverse_rms");
  cast_rows({rows, hidden,
             [=](std::int64_t t, float* to) {
               for (std::int64_t i = 0; i < hidden; ++i)
                 to[i] = x[t * hidden + i] * inverse_rms[t] * weight[i];
             }},
            o.cast);
}

void CpuDevice::execute(const op::SwigluBackwardCast& o) {
  cast_rows(swiglu_gradient_rows(o.dactivated, o.gate_up), o.cast);
}

void CpuDevice::execute(const op::Fp8BlockMaximum& o) {
  parallel_ranges(threads_, fp8_block_rows(o), 1,
                  [&](std::int64_t begin, std::int64_t end, int) { fp8_block_maximum(o, begin, end); });
}

void CpuDevice::execute(const op::Fp8BlockScales& o) { fp8_block_scales(o); }

void CpuDevice::execute(const op::Fp8BlockCast& o) {
  std::atomic<std::int64_t> saturated{0};
  parallel_ranges(threads_, fp8_block_rows(o), 1, [&](std::int64_t begin, std::int64_t end, int) {
    saturated += fp8_block_cast(o, begin, end);
  });
  if (o.counts == nullptr) return;
  o.counts->saturated += saturated;
  o.counts->zero_scales += is_zero_in_blocks(o) ? 1 : 0;
}

void CpuDevice::execute(const op::Fp8TileCast& o) {
  check_fp8_tile_cast(o);
  std::vector<Fp8TileCastPart> parts(static_cast<std::size_t>(threads_));
  parallel_ranges(threads_, o.source.rows / kFp8Block, 1,
                  [&](std::int64_t begin, std::int64_t end, int part) {
                    parts[static_cast<std::size_t>(part)] = fp8_tile_cast(o, begin, end);
                  });
  Fp8TileCastPart all;
  for (const auto& part : parts) {
    all.maximum = std::max(all.maximum, part.maximum);
    all.saturated += part.saturated;
  }
  end_fp8_tile_cast(o, all);
}

void CpuDevice::execute(const op::Fp8Transpose& o) {
  parallel_ranges(threads_, o.source.cols, 1,
                  [&](std::int64_t begin, std::int64_t end, int) { fp8_transpose_rows(o, begin, end); });
}

void CpuDevice::execute(const op::Fp8Product& o) {
  check_fp8_product(o);
  const std::int64_t m = o.y.rows, n = o.y.cols, k = o.a.cols;
  float* const y = floats(o.y, m, n, "y");
  if (o.residual && o.residual.data != o.y.data)
    std::memcpy(y, floats(o.residual, m, n, "residual"), static_cast<std::size_t>(o.y.bytes()));
  auto* const a = static_cast<float*>(workspace_of(o.workspace, sizes_.fp8_product_workspace(m, n, k)));
  float* const b = a + std::min(m, CpuSizes::kFp8Rows) * k;
  const auto widen = [&](const Tensor& from, const Tensor& scales, std::int64_t begin, std::int64_t end,
                         float* to) {
    parallel_ranges(threads_, end - begin, 1, [&](std::int64_t first, std::int64_t last, int) {
      fp8_widen(from, scales, begin + first, begin + last, to + first * k);
    });
  };
  for (std::int64_t col = 0; col < n; col += CpuSizes::kFp8Rows) {
    const std::int64_t cols = std::min(n - col, CpuSizes::kFp8Rows);
    widen(o.b, o.b_scale, col, col + cols, b);
    for (std::int64_t row = 0; row < m; row += CpuSizes::kFp8Rows) {
      const std::int64_t rows = std::min(m - row, CpuSizes::kFp8Rows);
      if (m > CpuSizes::kFp8Rows || col == 0) widen(o.a, o.a_scale, row, row + rows, a);
      Product product = product_nt(a, b, y + row * n + col, rows, cols, k);
      product.stride_c = n;
      product.beta = o.residual ? 1.0F : beta(o.accumulate_y);
      gemm_(product);
    }
  }
}

}  // namespace llampi::device
