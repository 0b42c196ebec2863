// SPDX-License-Identifier: Apache-2.0
#include "support/fp8_operations.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "llampi/core/float8.hpp"
#include "llampi/core/half.hpp"

namespace llampi::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Elements [offset, ...) of memory that is aligned, as a matrix.
Tensor behind(Session& s, std::int64_t rows, std::int64_t cols, DType dtype, std::int64_t offset) {
  const std::vector<std::byte> bytes(static_cast<std::size_t>((offset + rows * cols) * size_of(dtype)),
                                     std::byte{0xFF});
  const Tensor whole = s.raw(bytes.data(), 1, offset + rows * cols, dtype);
  Tensor part = whole.slice(offset, whole.cols);
  part.rows = rows;
  part.cols = cols;
  return part;
}

std::vector<std::uint8_t> bytes_of(Session& s, const Tensor& tensor) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.bytes()));
  if (!bytes.empty()) s.download(tensor, bytes.data());
  return bytes;
}

/// Some of the values replaced.
Values with(Values values, const std::vector<double>& special) {
  for (std::size_t i = 0; i < special.size(); ++i)
    values.data[(7 * i + values.data.size() / 3) % values.data.size()] = special[i];
  return values;
}

Values zeros(std::int64_t rows, std::int64_t cols) {
  return {rows, cols, std::vector<double>(static_cast<std::size_t>(rows * cols))};
}

}  // namespace

Fp8CastResult cast_to_fp8(Session& s, const Fp8CastCase& c) {
  const std::int64_t rows = c.source.rows, cols = c.source.cols;
  Values padded{1, c.source_offset + rows * cols,
                std::vector<double>(static_cast<std::size_t>(c.source_offset), kInfinity)};
  padded.data.insert(padded.data.end(), c.source.data.begin(), c.source.data.end());
  Tensor source = s.upload(padded).slice(c.source_offset, padded.cols);
  source.rows = rows;
  source.cols = cols;
  const std::vector<std::uint8_t> before = bytes_of(s, source);
  const Tensor maximum = s.integers({c.maximum.value_or(0)});
  if (!c.maximum) s.device().run(device::op::Fp8Maximum{.source = source, .maximum = maximum});
  const Tensor values = c.values ? behind(s, rows, cols, c.dtype, c.values_offset) : Tensor{};
  const Tensor transposed = c.transposed ? behind(s, cols, rows, c.dtype, 0) : Tensor{};
  const Tensor scale = c.scale ? s.output(1, 2, DType::float32) : Tensor{};
  const std::int64_t start[2] = {100, 200};  // they are added to
  const Tensor counts = s.raw(start, 1, 2, DType::int64);
  s.device().run(
      device::op::Fp8Cast{.source = source,
                          .maximum = maximum,
                          .values = values,
                          .transposed = transposed,
                          .scale = scale,
                          .counts = c.counts ? static_cast<device::Fp8Counts*>(counts.data) : nullptr});
  Fp8CastResult result;
  s.download(maximum, &result.maximum);
  if (c.values) result.values = bytes_of(s, values);
  if (c.transposed) result.transposed = bytes_of(s, transposed);
  if (c.scale) {
    result.scale.resize(2);
    s.download(scale, result.scale.data());
  }
  std::int64_t counted[2];
  s.download(counts, counted);
  result.saturated = counted[0] - start[0];
  result.zero_scales = counted[1] - start[1];
  EXPECT_EQ(bytes_of(s, source), before) << "the source was written to";
  return result;
}

std::vector<Fp8CastCase> fp8_casts() {
  const std::vector<double> special = {std::nan(""), -std::nan(""), kInfinity, -kInfinity, kInfinity, 1e-40,
                                       -1e-40,       3e-39,         0.0,       -0.0,       1e-20,     -1e-3};
  std::vector<Fp8CastCase> cases;
  for (const DType dtype : {DType::float8_e4m3fn, DType::float8_e5m2}) {
    const auto add = [&](Fp8CastCase c) {
      c.dtype = dtype;
      c.name += fmt::format(" to {} [{}, {}]", to_string(dtype), c.source.rows, c.source.cols);
      cases.push_back(std::move(c));
    };
    for (const auto& [rows, cols] :
         {std::array{16, 16}, {48, 80}, {272, 144}, {128, 256}, {16, 400}, {144, 16}})
      add({.name = "matrix", .source = with(normal(rows, cols, "source", 3e-3), special)});
    const Values matrix = normal(80, 48, "source", 1e4);
    add({.name = "values alone", .source = matrix, .transposed = false});
    add({.name = "transposed alone", .source = matrix, .values = false});
    add({.name = "no scale", .source = with(matrix, special), .scale = false});
    add({.name = "no counts", .source = with(matrix, special), .counts = false});
    add({.name = "odd sides", .source = with(normal(37, 51, "source"), special)});
    add({.name = "odd columns", .source = with(normal(32, 51, "source"), special)});
    add({.name = "odd rows", .source = with(normal(37, 64, "source"), special)});
    add({.name = "a matrix that begins anywhere",
         .source = with(normal(48, 64, "source"), special),
         .source_offset = 3,
         .values_offset = 5});
    add({.name = "zeros", .source = zeros(48, 80)});
    add({.name = "zeros and what is not finite", .source = with(zeros(48, 80), {kInfinity, std::nan("")})});
    add({.name = "subnormals", .source = normal(48, 80, "source", 1e-40)});
    add({.name = "the largest", .source = normal(48, 80, "source", 1e38)});
    add({.name = "beyond the maximum",
         .source = with(normal(48, 80, "source"), special),
         .maximum = std::bit_cast<std::int32_t>(0.5F)});
    for (const std::int64_t elements : {1, 7, 16, 1000, 8191, 16389}) {
      for (const auto& [from, to] : {std::array{0, 0}, {1, 1}, {13, 13}, {0, 1}, {5, 2}})
        add({.name = fmt::format("vector from {} to {}", from, to),
             .source = with(normal(1, elements, "source"), {kInfinity}),
             .transposed = false,
             .source_offset = from,
             .values_offset = to});
    }
  }
  return cases;
}

std::vector<Fp8CastCase> fp8_casts_of_every_bfloat16() {
  Values every = zeros(256, 256);
  for (std::size_t i = 0; i < every.data.size(); ++i)
    every.data[i] = static_cast<double>(from_bfloat16(static_cast<std::uint16_t>(i)));
  std::vector<Fp8CastCase> cases;
  for (const DType dtype : {DType::float8_e4m3fn, DType::float8_e5m2}) {
    for (const float maximum : {0x1p-120F, 0x1p-20F, 0.876F, 0.875F, 448.0F, 57344.0F, 3e38F}) {
      cases.push_back({.name = fmt::format("every bfloat16 to {}, maximum {}", to_string(dtype), maximum),
                       .source = every,
                       .dtype = dtype,
                       .maximum = std::bit_cast<std::int32_t>(maximum)});
    }
  }
  return cases;
}

std::vector<std::uint8_t> transposed_fp8(Session& s, std::int64_t rows, std::int64_t cols,
                                         std::vector<std::uint8_t>& source) {
  source.resize(static_cast<std::size_t>(rows * cols));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c)
      source[static_cast<std::size_t>(r * cols + c)] = static_cast<std::uint8_t>(31 * r + 7 * c + r / 8);
  }
  const Tensor to = behind(s, cols, rows, DType::float8_e5m2, 0);
  s.device().run(device::op::Fp8Transpose{.source = s.raw(source.data(), rows, cols, DType::float8_e5m2),
                                          .transposed = to});
  return bytes_of(s, to);
}

std::vector<float> fp8_scales(Session& s) {
  std::vector<std::int32_t> maxima{0};
  for (const float maximum : {1e-40F, 1e-20F, 0.1F, 1.0F, 1.75F, 1.7501F, 448.0F, 449.0F, 3e38F})
    maxima.push_back(std::bit_cast<std::int32_t>(maximum));
  const auto count = static_cast<std::int64_t>(maxima.size());
  const Tensor scales = s.output(count, 2, DType::float32);
  s.device().run(device::op::Fp8Scales{.maxima = s.integers(maxima), .scales = scales});
  std::vector<float> result(static_cast<std::size_t>(2 * count));
  s.download(scales, result.data());
  return result;
}

OperationCase fp8_product(const Fp8ProductCase& p) {
  OperationCase result;
  result.name = fmt::format("fp8_product [{}, {}, {}], {} {}, added {}{}", p.m, p.n, p.k, to_string(p.a),
                            to_string(p.b), static_cast<int>(p.added), p.fast_accumulation ? ", fast" : "");
  result.inputs = {normal(p.m, p.k, "a", 1e-3),
                   normal(p.n, p.k, "b", 1e3 / std::sqrt(static_cast<double>(p.k)))};
  result.terms = p.k;
  result.has_weight = false;
  const Values start = normal(p.m, p.n, "added");
  result.forward = [=](Session& s, const std::vector<Values>& in) {
    const auto cast = [&](const Values& values, DType dtype, const Tensor& scale) {
      const Tensor source = s.upload(values), maximum = s.integers({0});
      const Tensor to = behind(s, values.rows, values.cols, dtype, 0);
      s.device().run(device::op::Fp8Maximum{.source = source, .maximum = maximum});
      s.device().run(device::op::Fp8Cast{.source = source,
                                         .maximum = maximum,
                                         .values = to,
                                         .transposed = {},
                                         .scale = scale,
                                         .counts = nullptr});
      return to;
    };
    const Tensor a_scale = s.output(1, 2, DType::float32), b_scale = s.output(1, 2, DType::float32);
    const Tensor a = cast(in[0], p.a, a_scale), b = cast(in[1], p.b, b_scale);
    const bool in_place = p.added == Fp8Added::y || p.added == Fp8Added::y_as_residual;
    const Tensor y = in_place ? s.upload(start) : s.output(p.m, p.n);
    Tensor residual;
    if (p.added == Fp8Added::residual) residual = s.upload(start);
    if (p.added == Fp8Added::y_as_residual) residual = y;
    s.device().run(device::op::Fp8Product{
        .a = a,
        .a_scale = a_scale,
        .b = b,
        .b_scale = b_scale,
        .residual = residual,
        .y = y,
        .accumulate_y = p.added == Fp8Added::y ? Accumulate::yes : Accumulate::no,
        .fast_accumulation = p.fast_accumulation,
        .workspace = s.workspace(s.device().sizes().fp8_product_workspace(p.m, p.n, p.k))});
    return std::vector<Values>{s.download(y)};
  };
  return result;
}

std::vector<MeasuringCase> measuring_operations() {
  std::vector<MeasuringCase> cases;
  for (const std::int64_t width : {48, 51, 1040}) {
    for (const std::int64_t tokens : {1, 13}) {
      const auto name = [&](const char* what) { return fmt::format("{}, {} of {}", what, tokens, width); };
      const auto rms_norm = [=](Session& s, const Tensor& x, const Tensor& weight, const Tensor& y,
                                const Tensor& inverse_rms, const Tensor& maximum) {
        s.device().run(device::op::RmsNorm{
            .x = x, .weight = weight, .eps = 1e-5, .y = y, .inverse_rms = inverse_rms, .maximum = maximum});
      };
      cases.push_back({name("rms_norm"), [=](Session& s, const Tensor& maximum) {
                         const Tensor y = s.output(tokens, width);
                         rms_norm(s, s.upload(normal(tokens, width, "x")),
                                  s.upload(normal(1, width, "weight")), y, s.wide_output(1, tokens), maximum);
                         return y;
                       }});
      for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
        cases.push_back({name("rms_norm_backward"), [=](Session& s, const Tensor& maximum) {
                           const Tensor x = s.upload(normal(tokens, width, "x")),
                                        w = s.upload(normal(1, width, "weight"));
                           const Tensor inverse_rms = s.wide_output(1, tokens);
                           rms_norm(s, x, w, s.output(tokens, width), inverse_rms, {});
                           const Tensor dx = accumulate == Accumulate::yes
                                                 ? s.upload(normal(tokens, width, "branch", 2))
                                                 : s.output(tokens, width);
                           s.device().run(device::op::RmsNormBackward{
                               .dy = s.upload(normal(tokens, width, "dy")),
                               .x = x,
                               .weight = w,
                               .inverse_rms = inverse_rms,
                               .dx = dx,
                               .accumulate_dx = accumulate,
                               .dweight = s.weight_gradient(1, width, Accumulate::no),
                               .accumulate_dweight = Accumulate::no,
                               .workspace = s.workspace(
                                   s.device().sizes().rms_norm_backward_workspace(tokens, width, s.dtype())),
                               .maximum = maximum});
                           return dx;
                         }});
      }
      cases.push_back({name("swiglu"), [=](Session& s, const Tensor& maximum) {
                         const Tensor activated = s.output(tokens, width);
                         s.device().run(
                             device::op::Swiglu{.gate_up = s.upload(normal(tokens, 2 * width, "gate_up")),
                                                .activated = activated,
                                                .maximum = maximum});
                         return activated;
                       }});
      cases.push_back({name("swiglu_backward"), [=](Session& s, const Tensor& maximum) {
                         const Tensor gate_up = s.upload(normal(tokens, 2 * width, "gate_up"));
                         s.device().run(
                             device::op::SwigluBackward{.dactivated = s.upload(normal(tokens, width, "dy")),
                                                        .gate_up = gate_up,
                                                        .maximum = maximum});
                         return gate_up;
                       }});
    }
  }
  const Layout layout = mixed_segments(13);
  for (const device::AttentionShape shape : {device::AttentionShape{4, 2, 16}, {3, 1, 6}, {6, 6, 64}}) {
    for (const bool in_values : {false, true}) {
      cases.push_back(
          {fmt::format("rope, heads of {}", shape.head_dim), [=](Session& s, const Tensor& maximum) {
             Values values = normal(layout.tokens(), shape.qkv_cols(), "qkv");
             if (in_values) values.data.back() = 100;
             const Tensor qkv = s.upload(values);
             s.device().run(
                 device::op::Rope{.positions = s.batch(layout).positions,
                                  .rope = s.upload_wide(rope_table(layout.longest(), shape.head_dim)),
                                  .shape = shape,
                                  .backward = true,
                                  .qkv = qkv,
                                  .maximum = maximum});
             return qkv;
           }});
    }
  }
  return cases;
}

void expect_measures(Session& s, const MeasuringCase& operation) {
  SCOPED_TRACE(operation.name);
  const Values expected = s.download(operation.run(s, {}));
  std::int32_t bits = 0;
  for (const double v : expected.data) {
    const float magnitude = std::abs(from_bfloat16(to_bfloat16(static_cast<float>(v))));
    if (std::isfinite(magnitude)) bits = std::max(bits, std::bit_cast<std::int32_t>(magnitude));
  }
  EXPECT_GT(bits, 0);
  for (const std::int32_t start : {0, bits - 1, bits + 1}) {
    const Tensor maximum = s.integers({start});
    EXPECT_TRUE(same_bits(s.download(operation.run(s, maximum)), expected));
    std::int32_t measured = 0;
    s.download(maximum, &measured);
    EXPECT_EQ(measured, std::max(start, bits));
  }
}

}  // namespace llampi::test
