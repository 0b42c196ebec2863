// SPDX-License-Identifier: Apache-2.0
#include "gpu/fp8.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gpu/timing.hpp"
#include "llampi/device/fp8_scaling.hpp"

namespace llampi::bench {
namespace {

using device::Fp8Scaling;

Matrix scales_for(device::Device& device, Fp8Scaling scaling, std::int64_t rows, std::int64_t cols) {
  const auto shape = device::fp8_scale_shape(scaling, rows, cols);
  return Matrix(device, nullptr, DType::float32, shape.rows, shape.cols);
}

/// As maxima of blocks are kept, or one of all and a count.
Matrix maxima_for(device::Device& device, Fp8Scaling scaling, std::int64_t rows, std::int64_t cols) {
  const bool blocks = scaling == Fp8Scaling::blocks;
  return Matrix(device, nullptr, DType::int32, blocks ? rows / device::kFp8Block : 1,
                blocks                          ? cols / device::kFp8Block
                : scaling == Fp8Scaling::tensor ? 1
                                                : 2);
}

/// Noise in 8 bits, with its scales.
struct Fp8Matrix {
  Fp8Matrix(device::Device& device, const Noise& noise, DType source, DType dtype, Fp8Scaling scaling,
            std::int64_t rows, std::int64_t cols)
      : values(device, nullptr, dtype, rows, cols),
        scale(scales_for(device, scaling, rows, cols)),
        maximum(maxima_for(device, scaling, rows, cols)) {
    const Matrix from(device, &noise, source, rows, cols);
    device.run(device::op::Zero{.destination = maximum.view});
    if (scaling == Fp8Scaling::tensor) cast(device, from.view);
    if (scaling == Fp8Scaling::tiles) cast_in_tiles(device, from.view);
    if (scaling == Fp8Scaling::blocks) cast_in_blocks(device, from.view);
    device.synchronize(device::Stream::compute);  // `from` ends here
  }
  Matrix values, scale, maximum;

 private:
  void cast(device::Device& device, const Tensor& from) const {
    device.run(device::op::Fp8Maximum{.source = from, .maximum = maximum.view});
    device.run(device::op::Fp8Cast{.source = from,
                                   .maximum = maximum.view,
                                   .values = values.view,
                                   .transposed = {},
                                   .scale = scale.view,
                                   .counts = nullptr});
  }
  void cast_in_tiles(device::Device& device, const Tensor& from) const {
    device.run(device::op::Fp8TileCast{.source = from,
                                       .values = values.view,
                                       .scales = scale.view,
                                       .transposed = {},
                                       .transposed_scales = {},
                                       .maximum = maximum.view,
                                       .counts = nullptr});
  }
  void cast_in_blocks(device::Device& device, const Tensor& from) const {
    const Matrix turned = scales_for(device, Fp8Scaling::blocks, from.cols, from.rows);
    const Tensor flat = from.slice(0, from.elements());
    device.run(device::op::Fp8BlockMaximum{.source = flat, .first = 0, .maxima = maximum.view});
    device.run(device::op::Fp8BlockScales{
        .maxima = maximum.view, .scales = scale.view, .transposed_scales = turned.view});
    device.run(device::op::Fp8BlockCast{.source = flat,
                                        .first = 0,
                                        .maxima = maximum.view,
                                        .values = values.view.slice(0, flat.cols),
                                        .counts = nullptr});
    device.synchronize(device::Stream::compute);  // `turned` ends here
  }
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
                       const ProductTime& p, bool in_blocks) {
  constexpr DType kE4m3 = DType::float8_e4m3fn, kE5m2 = DType::float8_e5m2;
  const auto matrix = [&](DType to, Fp8Scaling scaling, std::int64_t rows, std::int64_t cols) {
    return Fp8Matrix(device, noise, dtype, to, in_blocks ? scaling : Fp8Scaling::tensor, rows, cols);
  };
  using enum Fp8Scaling;
  Fp8ProductTime time{.name = p.name + (in_blocks ? ", scales of blocks" : ""), .flops = p.forward_flops()};
  {
    const Matrix y(device, nullptr, dtype, p.rows, p.out);
    time.forward_seconds = time_product(device, matrix(kE4m3, tiles, p.rows, p.in),
                                        matrix(kE4m3, blocks, p.out, p.in), y, !in_blocks, 1);
  }
  const Matrix dx(device, nullptr, dtype, p.rows, p.in), dweight(device, nullptr, gradient, p.out, p.in);
  time.dx_seconds = time_product(device, matrix(kE5m2, tiles, p.rows, p.out),
                                 matrix(kE4m3, blocks, p.in, p.out), dx, false, 1);
  time.dweight_seconds = time_product(device, matrix(kE5m2, tiles, p.out, p.rows),
                                      matrix(kE4m3, tiles, p.in, p.rows), dweight, false, writes);
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

/// What each token needs to be rotated.
struct Angles {
  Angles(device::Device& device, std::int64_t tokens, std::int64_t seq_len, std::int64_t head_dim)
      : positions(device, nullptr, DType::int32, 1, tokens),
        rope(device, nullptr, DType::float32, seq_len, head_dim) {
    std::vector<std::int32_t> of_tokens(static_cast<std::size_t>(tokens));
    for (std::size_t t = 0; t < of_tokens.size(); ++t)
      of_tokens[t] = static_cast<std::int32_t>(static_cast<std::int64_t>(t) % seq_len);
    std::vector<float> table(static_cast<std::size_t>(seq_len * head_dim));
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = std::cos(static_cast<float>(i));
    device.upload(positions.view, of_tokens.data(), device::Stream::compute);
    device.upload(rope.view, table.data(), device::Stream::compute);
    device.synchronize(device::Stream::compute);
  }
  Matrix positions, rope;
};

/// Of what a layer measures and then computes once more to cast it: both passes.
std::vector<Fp8Bandwidth> measure_computed_casts(device::Device& device, const Noise& noise, DType dtype,
                                                 const Options& o) {
  namespace op = device::op;
  const std::int64_t tokens = o.tokens, hidden = o.hidden, width = o.feed_forward,
                     dim = hidden / o.query_heads;
  const device::AttentionShape shape{o.query_heads, o.key_value_heads, dim};
  const std::int64_t widest = std::max({hidden, 2 * width, shape.qkv_cols()});
  const Matrix source(device, &noise, dtype, tokens, widest),
      dactivated(device, &noise, dtype, tokens, width);
  const Matrix weight(device, &noise, dtype, 1, hidden),
      inverse_rms(device, nullptr, DType::float32, 1, tokens);
  const Matrix values(device, nullptr, DType::float8_e5m2, tokens, widest),
      transposed(device, nullptr, DType::float8_e5m2, widest, tokens);
  const Matrix maximum(device, nullptr, DType::int32, 1, 1), scale(device, nullptr, DType::float32, 4, 1);
  const Angles angles(device, tokens, std::min(o.seq_len, tokens), dim);
  const auto part = [](const Matrix& of, std::int64_t rows, std::int64_t cols) {
    return Tensor{of.view.data, of.view.dtype, rows, cols};
  };
  const auto cast_of = [&](std::int64_t cols) {
    return op::Fp8Cast{.source = {},
                       .maximum = maximum.view,
                       .values = part(values, tokens, cols),
                       .transposed = part(transposed, cols, tokens),
                       .scale = scale.view,
                       .counts = nullptr};
  };
  const auto rate = [&](std::int64_t read_by_each, std::int64_t cols, const auto& measure, const auto& cast) {
    const double seconds = time_call(device, [&](int) {
      device.run(op::Zero{.destination = maximum.view});
      device.run(measure);
      device.run(cast);
    });
    return static_cast<double>(2 * read_by_each * tokens * size_of(dtype) + 2 * tokens * cols) / seconds;
  };
  const Tensor x = part(source, tokens, hidden), gate_up = part(source, tokens, 2 * width),
               qkv = part(source, tokens, shape.qkv_cols());
  return {
      {"RMSNorm, measured, then cast with the transpose",
       rate(hidden, hidden,
            op::RmsNorm{.x = x,
                        .weight = weight.view,
                        .eps = 1e-5,
                        .y = {},
                        .inverse_rms = inverse_rms.view,
                        .maximum = maximum.view},
            op::RmsNormCast{
                .x = x, .weight = weight.view, .inverse_rms = inverse_rms.view, .cast = cast_of(hidden)})},
      {"the gradient of SwiGLU, likewise",
       rate(3 * width, 2 * width,
            op::SwigluBackward{
                .dactivated = dactivated.view, .gate_up = gate_up, .maximum = maximum.view, .writes = false},
            op::SwigluBackwardCast{
                .dactivated = dactivated.view, .gate_up = gate_up, .cast = cast_of(2 * width)})},
      {"the gradient of RoPE, likewise", rate(qkv.cols, qkv.cols,
                                              op::Rope{.positions = angles.positions.view,
                                                       .rope = angles.rope.view,
                                                       .shape = shape,
                                                       .backward = true,
                                                       .qkv = qkv,
                                                       .maximum = maximum.view,
                                                       .writes = false},
                                              op::RopeBackwardCast{.positions = angles.positions.view,
                                                                   .rope = angles.rope.view,
                                                                   .shape = shape,
                                                                   .qkv = qkv,
                                                                   .cast = cast_of(qkv.cols)})}};
}

/// With scales of tiles and blocks: of activations, and of a weight.
std::vector<Fp8Bandwidth> measure_bandwidths_in_blocks(device::Device& device, const Noise& noise,
                                                       DType dtype, std::int64_t rows, std::int64_t cols) {
  constexpr DType kTo = DType::float8_e4m3fn;
  const Matrix source(device, &noise, dtype, rows, cols), values(device, nullptr, kTo, rows, cols),
      transposed(device, nullptr, kTo, cols, rows);
  const Matrix scales = scales_for(device, Fp8Scaling::tiles, rows, cols);
  const Matrix transposed_scales = scales_for(device, Fp8Scaling::tiles, cols, rows);
  const Matrix maximum = maxima_for(device, Fp8Scaling::tiles, rows, cols);
  const Matrix maxima = maxima_for(device, Fp8Scaling::blocks, rows, cols);
  device.run(device::op::Zero{.destination = maximum.view});
  device.run(device::op::Zero{.destination = maxima.view});
  const Tensor flat = source.view.slice(0, rows * cols), flat_values = values.view.slice(0, rows * cols);
  const auto elements = static_cast<double>(rows * cols), read = static_cast<double>(source.view.bytes());
  const double in_tiles = time_call(device, [&](int) {
    device.run(device::op::Fp8TileCast{.source = source.view,
                                       .values = values.view,
                                       .scales = scales.view,
                                       .transposed = transposed.view,
                                       .transposed_scales = transposed_scales.view,
                                       .maximum = maximum.view,
                                       .counts = nullptr});
  });
  const double measuring = time_call(device, [&](int) {
    device.run(device::op::Fp8BlockMaximum{.source = flat, .first = 0, .maxima = maxima.view});
  });
  const double in_blocks = time_call(device, [&](int) {
    device.run(device::op::Fp8BlockCast{
        .source = flat, .first = 0, .maxima = maxima.view, .values = flat_values, .counts = nullptr});
  });
  return {{"cast in tiles, with the transpose", (read + 2 * elements) / in_tiles},
          {"largest magnitudes of blocks", read / measuring},
          {"cast in blocks", (read + elements) / in_blocks}};
}

bool has_blocks(std::initializer_list<std::int64_t> sides) {
  return std::ranges::all_of(sides, [](std::int64_t side) { return side % device::kFp8Block == 0; });
}

}  // namespace

Fp8Limits measure_fp8(device::Device& device, const Noise& noise, DType dtype, const Options& options,
                      const std::vector<ProductTime>& products, bool in_blocks) {
  Fp8Limits limits;
  // None of them was in the steps, where products are chosen.
  device::Autotuner* const autotuner = device.autotuner();
  if (autotuner != nullptr) autotuner->measure(options.tuning != "off");
  for (const ProductTime& product : products) {
    if (product.rows % 16 != 0 || product.in % 16 != 0 || product.out % 16 != 0) continue;
    const auto add = [&](bool blocks) {
      limits.products.push_back(measure(device, noise, dtype, dtype_of_word(options.gradient),
                                        std::max(options.micro_batches, 1), product, blocks));
    };
    add(false);
    if (in_blocks && has_blocks({product.rows, product.in, product.out})) add(true);
  }
  if (autotuner != nullptr) autotuner->measure(false);
  const std::int64_t rows = options.tokens, cols = 2 * options.feed_forward;
  limits.bandwidths = measure_bandwidths(device, noise, dtype, rows, cols);
  for (Fp8Bandwidth& bandwidth : measure_computed_casts(device, noise, dtype, options))
    limits.bandwidths.push_back(std::move(bandwidth));
  if (in_blocks && has_blocks({rows, cols})) {
    for (Fp8Bandwidth& bandwidth : measure_bandwidths_in_blocks(device, noise, dtype, rows, cols))
      limits.bandwidths.push_back(std::move(bandwidth));
  }
  return limits;
}

}  // namespace llampi::bench
