// SPDX-License-Identifier: Apache-2.0
#include "gpu/fp8.hpp"

#include "gpu/timing.hpp"

namespace llampi::bench {
namespace {

/// Noise in 8 bits, with its scale.
struct Fp8Matrix {
  Fp8Matrix(device::Device& device, const Noise& noise, DType source, DType dtype, std::int64_t rows,
            std::int64_t cols)
      : values(device, nullptr, dtype, rows, cols),
        scale(device, nullptr, DType::float32, 1, 2),
        maximum(device, nullptr, DType::int32, 1, 1) {
    const Matrix from(device, &noise, source, rows, cols);
    device.run(device::op::Zero{.destination = maximum.view});
    device.run(device::op::Fp8Maximum{.source = from.view, .maximum = maximum.view});
    device.run(device::op::Fp8Cast{.source = from.view,
                                   .maximum = maximum.view,
                                   .values = values.view,
                                   .transposed = {},
                                   .scale = scale.view,
                                   .counts = nullptr});
    device.synchronize(device::Stream::compute);  // `from` ends here
  }
  Matrix values, scale, maximum;
};

/// Seconds of y (+)= a b^T. Every `writes`-th call overwrites y.
double time_product(device::Device& device, const Fp8Matrix& a, const Fp8Matrix& b, const Matrix& y,
                    bool fast_accumulation, int writes) {
  return time_call(device, [&](int call) {
    device.run(device::op::Fp8Product{.a = a.values.view,
                                      .a_scale = a.scale.view,
                                      .b = b.values.view,
                                      .b_scale = b.scale.view,
                                      .residual = {},
                                      .y = y.view,
                                      .accumulate_y = call % writes == 0 ? Accumulate::no : Accumulate::yes,
                                      .fast_accumulation = fast_accumulation,
                                      .workspace = {}});
  });
}

Fp8ProductTime measure(device::Device& device, const Noise& noise, DType dtype, DType gradient, int writes,
                       const ProductTime& p) {
  constexpr DType kE4m3 = DType::float8_e4m3fn, kE5m2 = DType::float8_e5m2;
  const auto matrix = [&](DType to, std::int64_t rows, std::int64_t cols) {
    return Fp8Matrix(device, noise, dtype, to, rows, cols);
  };
  Fp8ProductTime time{.name = p.name, .flops = p.forward_flops()};
  {
    const Matrix y(device, nullptr, dtype, p.rows, p.out);
    time.forward_seconds =
        time_product(device, matrix(kE4m3, p.rows, p.in), matrix(kE4m3, p.out, p.in), y, true, 1);
  }
  const Matrix dx(device, nullptr, dtype, p.rows, p.in), dweight(device, nullptr, gradient, p.out, p.in);
  time.dx_seconds =
      time_product(device, matrix(kE5m2, p.rows, p.out), matrix(kE4m3, p.in, p.out), dx, false, 1);
  time.dweight_seconds =
      time_product(device, matrix(kE5m2, p.out, p.rows), matrix(kE4m3, p.in, p.rows), dweight, false, writes);
  return time;
}

std::vector<Fp8Bandwidth> measure_bandwidths(device::Device& device, const Noise& noise, DType dtype,
                                             std::int64_t rows, std::int64_t cols) {
  constexpr DType kTo = DType::float8_e4m3fn;
  const Matrix source(device, &noise, dtype, rows, cols), maximum(device, nullptr, DType::int32, 1, 1);
  const Matrix values(device, nullptr, kTo, rows, cols), transposed(device, nullptr, kTo, cols, rows);
  device.run(device::op::Zero{.destination = maximum.view});
  const auto cast = [&](const Tensor& to, const Tensor& turned) {
    return time_call(device, [&](int) {
      device.run(device::op::Fp8Cast{.source = source.view,
                                     .maximum = maximum.view,
                                     .values = to,
                                     .transposed = turned,
                                     .scale = {},
                                     .counts = nullptr});
    });
  };
  const auto elements = static_cast<double>(rows * cols), read = static_cast<double>(source.view.bytes());
  const double measuring = time_call(device, [&](int) {
    device.run(device::op::Fp8Maximum{.source = source.view, .maximum = maximum.view});
  });
  const double turning = time_call(device, [&](int) {
    device.run(device::op::Fp8Transpose{.source = values.view, .transposed = transposed.view});
  });
  return {{"largest magnitude", read / measuring},
          {"cast to 8 bits", (read + elements) / cast(values.view, {})},
          {"cast to 8 bits, with the transpose", (read + 2 * elements) / cast(values.view, transposed.view)},
          {"transpose of 8 bits", 2 * elements / turning}};
}

}  // namespace

Fp8Limits measure_fp8(device::Device& device, const Noise& noise, DType dtype, const Options& options,
                      const std::vector<ProductTime>& products) {
  Fp8Limits limits;
  // None of them was in the steps, where products are chosen.
  device::Tuning* const tuning = options.tuning ? device.tuning() : nullptr;
  if (tuning != nullptr) tuning->measure(true);
  for (const ProductTime& product : products) {
    if (product.rows % 16 != 0 || product.in % 16 != 0 || product.out % 16 != 0) continue;
    limits.products.push_back(measure(device, noise, dtype, dtype_of_word(options.gradient),
                                      std::max(options.micro_batches, 1), product));
  }
  if (tuning != nullptr) tuning->measure(false);
  limits.bandwidths = measure_bandwidths(device, noise, dtype, options.tokens, 2 * options.feed_forward);
  return limits;
}

}  // namespace llampi::bench
