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

std::vector<float> floats_of(Session& s, const Tensor& tensor) {
  std::vector<float> floats(static_cast<std::size_t>(tensor.elements()));
  if (!floats.empty()) s.download(tensor, floats.data());
  return floats;
}

/// Fp8Counts, to which is added.
class Counts {
 public:
  explicit Counts(Session& s) : s_(s), tensor_(s.raw(kStart, 1, 2, DType::int64)) {}
  device::Fp8Counts* get() const { return static_cast<device::Fp8Counts*>(tensor_.data); }
  /// What has been added.
  void read(std::int64_t& saturated, std::int64_t& zero_scales) const {
    std::int64_t counted[2];
    s_.download(tensor_, counted);
    saturated = counted[0] - kStart[0];
    zero_scales = counted[1] - kStart[1];
  }

 private:
  static constexpr std::int64_t kStart[2] = {100, 200};
  Session& s_;
  Tensor tensor_;
};

/// What a cast of [rows, cols] is asked for.
struct CastRequest {
  std::string name = "both";
  DType dtype = DType::float8_e4m3fn;
  bool values = true, transposed = true, scale = true, counts = true;
  std::int64_t offset = 0;  ///< elements before the operands, and bytes before what is written
  std::int64_t transposed_offset = offset;
};

Tensor upload_behind(Session& s, const Values& values, std::int64_t offset) {
  Values padded{1, offset, std::vector<double>(static_cast<std::size_t>(offset), kInfinity)};
  padded.data.insert(padded.data.end(), values.data.begin(), values.data.end());
  padded.cols = std::ssize(padded.data);
  Tensor part = s.upload(padded).slice(offset, padded.cols);
  part.rows = values.rows;
  part.cols = values.cols;
  return part;
}

/// What issue(a cast with these outputs) casts: a matrix [rows, cols] with this maximum.
Fp8CastResult cast_as_requested(Session& s, const CastRequest& request, std::int64_t rows, std::int64_t cols,
                                const Tensor& maximum,
                                const std::function<void(const device::op::Fp8Cast&)>& issue) {
  const Tensor values = request.values ? behind(s, rows, cols, request.dtype, request.offset) : Tensor{};
  const Tensor transposed =
      request.transposed ? behind(s, cols, rows, request.dtype, request.transposed_offset) : Tensor{};
  const Tensor scale = request.scale ? s.output(4, 1, DType::float32) : Tensor{};
  const Counts counts(s);
  issue({.source = {},
         .maximum = maximum,
         .values = values,
         .transposed = transposed,
         .scale = scale,
         .counts = request.counts ? counts.get() : nullptr});
  Fp8CastResult result;
  result.values = bytes_of(s, values);
  result.transposed = bytes_of(s, transposed);
  s.download(maximum, &result.maximum);
  if (request.scale) result.scale = floats_of(s, scale);
  counts.read(result.saturated, result.zero_scales);
  return result;
}

device::op::Fp8Cast with_source(device::op::Fp8Cast cast, const Tensor& source) {
  cast.source = source;
  return cast;
}

}  // namespace

Fp8CastResult cast_to_fp8(Session& s, const Fp8CastCase& c) {
  const Tensor source = upload_behind(s, c.source, c.source_offset);
  const std::vector<std::uint8_t> before = bytes_of(s, source);
  const Tensor maximum = s.integers({c.maximum.value_or(0)});
  if (!c.maximum) s.device().run(device::op::Fp8Maximum{.source = source, .maximum = maximum});
  const CastRequest request{.name = c.name,
                            .dtype = c.dtype,
                            .values = c.values,
                            .transposed = c.transposed,
                            .scale = c.scale,
                            .counts = c.counts,
                            .offset = c.values_offset,
                            .transposed_offset = 0};
  const auto result =
      cast_as_requested(s, request, source.rows, source.cols, maximum,
                        [&](const device::op::Fp8Cast& cast) { s.device().run(with_source(cast, source)); });
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
  const Tensor scales = s.output(count, 4, DType::float32);
  s.device().run(device::op::Fp8Scales{.maxima = s.integers(maxima), .scales = scales});
  std::vector<float> result(static_cast<std::size_t>(4 * count));
  s.download(scales, result.data());
  return result;
}

namespace {

/// Scales of a matrix [rows, cols] in 8 bits, to be written.
Tensor scales_for(Session& s, device::Fp8Scaling scaling, std::int64_t rows, std::int64_t cols) {
  const auto shape = device::fp8_scale_shape(scaling, rows, cols);
  return s.output(shape.rows, shape.cols, DType::float32);
}

}  // namespace

Fp8TileCastResult cast_tiles_to_fp8(Session& s, const Fp8TileCastCase& c) {
  using device::Fp8Scaling;
  const std::int64_t rows = c.source.rows, cols = c.source.cols;
  const Tensor source = s.upload(c.source), maximum = s.integers({0, 0});
  const std::vector<std::uint8_t> before = bytes_of(s, source);
  Tensor values, scales, transposed, transposed_scales;
  if (c.values) {
    values = behind(s, rows, cols, c.dtype, 0);
    scales = scales_for(s, Fp8Scaling::tiles, rows, cols);
  }
  if (c.transposed) {
    transposed = behind(s, cols, rows, c.dtype, 0);
    transposed_scales = scales_for(s, Fp8Scaling::tiles, cols, rows);
  }
  const Counts counts(s);
  s.device().run(device::op::Fp8TileCast{.source = source,
                                         .values = values,
                                         .scales = scales,
                                         .transposed = transposed,
                                         .transposed_scales = transposed_scales,
                                         .maximum = maximum,
                                         .counts = c.counts ? counts.get() : nullptr});
  Fp8TileCastResult result{.values = bytes_of(s, values),
                           .transposed = bytes_of(s, transposed),
                           .scales = floats_of(s, scales),
                           .transposed_scales = floats_of(s, transposed_scales)};
  std::int32_t measured[2];
  s.download(maximum, measured);
  result.maximum = measured[0];
  counts.read(result.saturated, result.zero_scales);
  EXPECT_EQ(bytes_of(s, source), before) << "the source was written to";
  return result;
}

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Each square of 128 x 128 has another magnitude, from 2^-140 to 2^100; one has zeros, and in some rows and columns of
/// others there are no other numbers.
Values squares_of_many_magnitudes(std::int64_t rows, std::int64_t cols) {
  Values values = normal(rows, cols, "squares");
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t square = r / 128 * (cols / 128) + c / 128;
      double& x = values.data[static_cast<std::size_t>(r * cols + c)];
      x = std::ldexp(x, static_cast<int>(square * 97 % 240 - 140 + (r * 5 + c * 3) % 11));
      if (square == 1 || r % 128 == 77 || c % 128 == 33) x = r % 2 == 0 ? 0.0 : -0.0;
    }
  }
  return values;
}

/// Along rows, or along columns.
Values every_bfloat16(bool along_columns) {
  Values every = zeros(256, 256);
  for (std::size_t i = 0; i < every.data.size(); ++i) {
    const std::size_t at = along_columns ? i % 256 * 256 + i / 256 : i;
    every.data[at] = static_cast<double>(from_bfloat16(static_cast<std::uint16_t>(i)));
  }
  return every;
}

}  // namespace

std::vector<Fp8TileCastCase> fp8_tile_casts() {
  const std::vector<double> special = {kNaN,   -kNaN, kInfinity, -kInfinity, kInfinity, 1e-40,
                                       -1e-40, 3e-39, 0.0,       -0.0,       1e-20,     -1e-3};
  std::vector<Fp8TileCastCase> cases;
  for (const DType dtype : {DType::float8_e4m3fn, DType::float8_e5m2}) {
    const auto add = [&](Fp8TileCastCase c) {
      c.dtype = dtype;
      c.name += fmt::format(" to {} [{}, {}]", to_string(dtype), c.source.rows, c.source.cols);
      cases.push_back(std::move(c));
    };
    for (const auto& [rows, cols] : {std::array{128, 128}, {256, 384}, {384, 128}, {128, 512}}) {
      add({.name = "normal", .source = with(normal(rows, cols, "source", 3e-3), special)});
      add({.name = "many magnitudes", .source = squares_of_many_magnitudes(rows, cols)});
    }
    const Values matrix = with(squares_of_many_magnitudes(256, 384), special);
    add({.name = "many magnitudes, and what is not finite", .source = matrix});
    add({.name = "values alone", .source = matrix, .transposed = false});
    add({.name = "transposed alone", .source = matrix, .values = false});
    add({.name = "no counts", .source = matrix, .counts = false});
    add({.name = "zeros", .source = zeros(256, 128)});
    add({.name = "zeros, transposed alone", .source = zeros(256, 128), .values = false});
    add({.name = "zeros and what is not finite",
         .source = with(zeros(128, 256), {kInfinity, kNaN, -kInfinity})});
    add({.name = "zeros and one number", .source = with(zeros(128, 256), {-1e-3})});
    add({.name = "subnormals", .source = normal(128, 128, "source", 1e-40)});
    add({.name = "the largest", .source = normal(128, 128, "source", 1e38)});
    for (const bool along_columns : {false, true})
      add({.name = "every bfloat16", .source = every_bfloat16(along_columns)});
  }
  return cases;
}

namespace {

/// Elements of a weight, in memory that lies by `shift` elements elsewhere than they would in the weight's.
struct Part {
  std::int64_t begin, end, shift;
  std::int64_t elements() const { return end - begin; }
  std::int64_t offset() const { return (begin + shift) % 8; }
};

Tensor upload_part(Session& s, const Values& weight, const Part& part) {
  Values values{1, part.offset() + part.elements(),
                std::vector<double>(static_cast<std::size_t>(part.offset()), kInfinity)};
  values.data.insert(values.data.end(), weight.data.begin() + part.begin, weight.data.begin() + part.end);
  return s.upload(values).slice(part.offset(), values.cols);
}

/// The bytes of the part; those before it, which are of its memory, must be as behind() left them.
std::vector<std::uint8_t> bytes_of_part(Session& s, const Tensor& values, const Part& part) {
  if (part.offset() > 0) {
    const auto before = bytes_of(s, values.slice(-part.offset(), 0));
    EXPECT_TRUE(std::ranges::all_of(before, [](std::uint8_t byte) { return byte == 0xFF; }));
  }
  return bytes_of(s, values);
}

std::vector<Part> parts_of(const Fp8BlockCase& c, std::int64_t shift) {
  std::vector<Part> parts;
  std::int64_t begin = 0;
  for (const std::int64_t end : c.cuts) {
    parts.push_back({begin, end, shift});
    begin = end;
  }
  parts.push_back({begin, c.weight.rows * c.weight.cols, shift});
  return parts;
}

}  // namespace

Fp8BlockResult cast_blocks_to_fp8(Session& s, const Fp8BlockCase& c) {
  using device::Fp8Scaling;
  const std::int64_t rows = c.weight.rows, cols = c.weight.cols;
  std::vector<std::int32_t> none(static_cast<std::size_t>(rows / 128 * (cols / 128)));
  const Tensor maxima = s.raw(none.data(), rows / 128, cols / 128, DType::int32);
  const Tensor scales = scales_for(s, Fp8Scaling::blocks, rows, cols);
  const Tensor transposed_scales = scales_for(s, Fp8Scaling::blocks, cols, rows);
  const std::vector<Part> parts = parts_of(c, c.source_shift), to = parts_of(c, c.values_shift);
  std::vector<Tensor> sources;
  for (const Part& part : parts) sources.push_back(upload_part(s, c.weight, part));
  for (std::size_t i = 0; i < parts.size(); ++i)
    s.device().run(
        device::op::Fp8BlockMaximum{.source = sources[i], .first = parts[i].begin, .maxima = maxima});
  s.device().run(
      device::op::Fp8BlockScales{.maxima = maxima, .scales = scales, .transposed_scales = transposed_scales});
  const Counts counts(s);
  Fp8BlockResult result;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Tensor values = behind(s, 1, to[i].elements(), DType::float8_e4m3fn, to[i].offset());
    const std::vector<std::uint8_t> before = bytes_of(s, sources[i]);
    s.device().run(device::op::Fp8BlockCast{.source = sources[i],
                                            .first = parts[i].begin,
                                            .maxima = maxima,
                                            .values = values,
                                            .counts = c.counts ? counts.get() : nullptr});
    const std::vector<std::uint8_t> bytes = bytes_of_part(s, values, to[i]);
    result.values.insert(result.values.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(bytes_of(s, sources[i]), before) << "the source was written to";
  }
  result.maxima = std::move(none);
  s.download(maxima, result.maxima.data());
  result.scales = floats_of(s, scales);
  result.transposed_scales = floats_of(s, transposed_scales);
  counts.read(result.saturated, result.zero_scales);
  return result;
}

std::vector<Fp8BlockCase> fp8_block_casts() {
  const std::vector<double> special = {kNaN, -kNaN, kInfinity, -kInfinity, kInfinity, 1e-40, 0.0, -1e-3};
  const Values weight = with(squares_of_many_magnitudes(256, 384), special);
  const std::vector<std::int64_t> cuts[] = {
      {}, {50001}, {128, 49152}, {1, 16384, 16391, 70003}, {100, 101, 40000, 49151, 49280, 98303}};
  std::vector<Fp8BlockCase> cases;
  for (const auto& at : cuts) {
    for (const auto& [source, values] : {std::array{0, 0}, {3, 3}, {0, 5}})
      cases.push_back({.name = fmt::format("{} parts, {} and {} elsewhere", at.size() + 1, source, values),
                       .weight = weight,
                       .cuts = at,
                       .source_shift = source,
                       .values_shift = values});
  }
  cases.push_back({.name = "no counts", .weight = weight, .cuts = {50001}, .counts = false});
  cases.push_back({.name = "zeros", .weight = zeros(128, 256), .cuts = {100, 20000}});
  cases.push_back(
      {.name = "zeros and infinity", .weight = with(zeros(128, 256), {kInfinity, kNaN}), .cuts = {20000}});
  cases.push_back({.name = "one block", .weight = normal(128, 128, "weight")});
  cases.push_back({.name = "five blocks down", .weight = squares_of_many_magnitudes(640, 128)});
  cases.push_back({.name = "five blocks across", .weight = squares_of_many_magnitudes(128, 640)});
  for (const bool along_columns : {false, true})
    cases.push_back(
        {.name = "every bfloat16", .weight = every_bfloat16(along_columns), .cuts = {16384, 40001}});
  return cases;
}

Fp8BlockCase in_one_part(Fp8BlockCase blocks) {
  blocks.cuts.clear();
  return blocks;
}

namespace {

struct Fp8Operand {
  Tensor values, scale;
};

Fp8Operand cast_with_one_scale(Session& s, const Tensor& source, DType dtype) {
  const Tensor maximum = s.integers({0});
  const Fp8Operand to{behind(s, source.rows, source.cols, dtype, 0), s.output(4, 1, DType::float32)};
  s.device().run(device::op::Fp8Maximum{.source = source, .maximum = maximum});
  s.device().run(device::op::Fp8Cast{.source = source,
                                     .maximum = maximum,
                                     .values = to.values,
                                     .transposed = {},
                                     .scale = to.scale,
                                     .counts = nullptr});
  return to;
}

Fp8Operand cast_in_tiles(Session& s, const Tensor& source, DType dtype) {
  const Fp8Operand to{behind(s, source.rows, source.cols, dtype, 0),
                      scales_for(s, device::Fp8Scaling::tiles, source.rows, source.cols)};
  s.device().run(device::op::Fp8TileCast{.source = source,
                                         .values = to.values,
                                         .scales = to.scale,
                                         .transposed = {},
                                         .transposed_scales = {},
                                         .maximum = s.integers({0, 0}),
                                         .counts = nullptr});
  return to;
}

Fp8Operand cast_in_blocks(Session& s, const Tensor& source, DType dtype) {
  const std::int64_t rows = source.rows, cols = source.cols;
  const std::vector<std::int32_t> none(static_cast<std::size_t>(rows / 128 * (cols / 128)));
  const Tensor maxima = s.raw(none.data(), rows / 128, cols / 128, DType::int32);
  const Tensor flat = source.slice(0, source.elements());
  const Fp8Operand to{behind(s, rows, cols, dtype, 0), scales_for(s, device::Fp8Scaling::blocks, rows, cols)};
  s.device().run(device::op::Fp8BlockMaximum{.source = flat, .first = 0, .maxima = maxima});
  s.device().run(
      device::op::Fp8BlockScales{.maxima = maxima,
                                 .scales = to.scale,
                                 .transposed_scales = scales_for(s, device::Fp8Scaling::blocks, cols, rows)});
  s.device().run(device::op::Fp8BlockCast{.source = flat,
                                          .first = 0,
                                          .maxima = maxima,
                                          .values = to.values.slice(0, to.values.elements()),
                                          .counts = nullptr});
  return to;
}

Fp8Operand cast_operand(Session& s, const Values& values, DType dtype, device::Fp8Scaling scaling) {
  const Tensor source = s.upload(values);
  if (scaling == device::Fp8Scaling::tiles) return cast_in_tiles(s, source, dtype);
  if (scaling == device::Fp8Scaling::blocks) return cast_in_blocks(s, source, dtype);
  return cast_with_one_scale(s, source, dtype);
}

/// Tiles 2^20 times as great as others; `sign` turns round which, so that products of both are not.
void spread(Values& values, int sign) {
  for (std::int64_t r = 0; r < values.rows; ++r) {
    for (std::int64_t c = 0; c < values.cols; ++c) {
      const std::int64_t of_tile = c / 128 * 7 % 21 - 10, of_row = r % 128 * 3 % 5 - r / 128;
      double& x = values.data[static_cast<std::size_t>(r * values.cols + c)];
      x = std::ldexp(x, static_cast<int>(sign * of_tile + of_row));
    }
  }
}

}  // namespace

std::vector<Fp8ProductCase> fp8_block_products(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr DType kE4m3 = DType::float8_e4m3fn, kE5m2 = DType::float8_e5m2;
  using enum device::Fp8Scaling;
  std::vector<Fp8ProductCase> products;
  for (const Fp8Added added : kFp8Added) {
    const Fp8ProductCase product{.m = m, .n = n, .k = k, .added = added};
    const auto add = [&](DType a, device::Fp8Scaling a_scaling, DType b, device::Fp8Scaling b_scaling) {
      products.push_back(product);
      products.back().a = a;
      products.back().b = b;
      products.back().a_scaling = a_scaling;
      products.back().b_scaling = b_scaling;
    };
    for (const DType gradient : {kE4m3, kE5m2}) {
      add(gradient, tiles, kE4m3, tiles);
      add(gradient, tiles, kE4m3, blocks);
    }
    add(kE4m3, tiles, kE5m2, tiles);
    add(kE4m3, blocks, kE4m3, tiles);
    add(kE4m3, blocks, kE5m2, tiles);
  }
  return products;
}

OperationCase fp8_product(const Fp8ProductCase& p) {
  OperationCase result;
  result.name =
      fmt::format("fp8_product [{}, {}, {}], {} {}, scaling {} {}, added {}{}", p.m, p.n, p.k, to_string(p.a),
                  to_string(p.b), static_cast<int>(p.a_scaling), static_cast<int>(p.b_scaling),
                  static_cast<int>(p.added), p.fast_accumulation ? ", fast" : "");
  result.inputs = {normal(p.m, p.k, "a", 1e-3),
                   normal(p.n, p.k, "b", 1e3 / std::sqrt(static_cast<double>(p.k)))};
  if (p.a_scaling != device::Fp8Scaling::tensor || p.b_scaling != device::Fp8Scaling::tensor) {
    spread(result.inputs[0], 1);
    spread(result.inputs[1], -1);
  }
  result.terms = p.k;
  result.weights = 0;
  const Values start = normal(p.m, p.n, "added");
  result.forward = [=](Session& s, const std::vector<Values>& in) {
    const Fp8Operand a = cast_operand(s, in[0], p.a, p.a_scaling);
    const Fp8Operand b = cast_operand(s, in[1], p.b, p.b_scaling);
    const bool in_place = p.added == Fp8Added::y || p.added == Fp8Added::y_as_residual;
    const Tensor y = in_place ? s.upload(start) : s.output(p.m, p.n);
    Tensor residual;
    if (p.added == Fp8Added::residual) residual = s.upload(start);
    if (p.added == Fp8Added::y_as_residual) residual = y;
    s.device().run(device::op::Fp8Product{
        .a = a.values,
        .a_scale = a.scale,
        .b = b.values,
        .b_scale = b.scale,
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
  const Layout layout = mixed_documents(13);
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

namespace {

std::vector<CastRequest> cast_requests() {
  constexpr DType kE5m2 = DType::float8_e5m2;
  return {{.name = "both"},
          {.name = "e5m2", .dtype = kE5m2},
          {.name = "values alone", .transposed = false},
          {.name = "transposed alone", .dtype = kE5m2, .values = false},
          {.name = "no scale, no counts", .scale = false, .counts = false},
          {.name = "from anywhere to anywhere", .dtype = kE5m2, .offset = 3}};
}

Fp8CastResult norm_cast(Session& s, Written written, const CastRequest& request, std::int64_t rows,
                        std::int64_t cols) {
  const Tensor x = upload_behind(s, normal(rows, cols, "x"), request.offset);
  Values of_weight = normal(1, cols, "weight");
  of_weight.data[static_cast<std::size_t>(cols / 2)] = kInfinity;
  const Tensor weight = upload_behind(s, of_weight, request.offset);
  const Tensor y = written == Written::yes ? s.output(rows, cols) : Tensor{};
  const Tensor inverse_rms = s.wide_output(1, rows), maximum = s.integers({0});
  s.device().run(device::op::RmsNorm{
      .x = x, .weight = weight, .eps = 1e-5, .y = y, .inverse_rms = inverse_rms, .maximum = maximum});
  return cast_as_requested(s, request, rows, cols, maximum, [&](const device::op::Fp8Cast& cast) {
    if (written == Written::yes) return s.device().run(with_source(cast, y));
    s.device().run(
        device::op::RmsNormCast{.x = x, .weight = weight, .inverse_rms = inverse_rms, .cast = cast});
  });
}

Fp8CastResult swiglu_backward_cast(Session& s, Written written, const CastRequest& request, std::int64_t rows,
                                   std::int64_t width) {
  const Tensor dactivated = upload_behind(
      s, with(normal(rows, width, "dactivated", 1e-3), {kInfinity, -kInfinity, kNaN}), request.offset);
  const Tensor gate_up = upload_behind(s, normal(rows, 2 * width, "gate_up", 2), request.offset);
  const std::vector<std::uint8_t> before = bytes_of(s, gate_up);
  const Tensor maximum = s.integers({0});
  s.device().run(device::op::SwigluBackward{
      .dactivated = dactivated, .gate_up = gate_up, .maximum = maximum, .writes = written == Written::yes});
  const auto result =
      cast_as_requested(s, request, rows, 2 * width, maximum, [&](const device::op::Fp8Cast& cast) {
        if (written == Written::yes) return s.device().run(with_source(cast, gate_up));
        s.device().run(
            device::op::SwigluBackwardCast{.dactivated = dactivated, .gate_up = gate_up, .cast = cast});
      });
  if (written == Written::no) {
    EXPECT_EQ(bytes_of(s, gate_up), before);
  }
  return result;
}

Fp8CastResult rope_backward_cast(Session& s, Written written, const CastRequest& request,
                                 const Layout& layout, const device::AttentionShape& shape) {
  const std::int64_t rows = layout.tokens(), cols = shape.qkv_cols();
  Values values = with(normal(rows, cols, "qkv", 1e-2), {kInfinity, -0.0, kNaN, -kInfinity, -kNaN, 0.0});
  values.data.back() = -0.0;
  values.data[values.data.size() - 2] = -kNaN;
  const Tensor qkv = upload_behind(s, values, request.offset);
  const Tensor rope = s.upload_wide(rope_table(layout.longest(), shape.head_dim));
  const Tensor positions = s.batch(layout).positions, maximum = s.integers({0});
  const std::vector<std::uint8_t> before = bytes_of(s, qkv);
  s.device().run(device::op::Rope{.positions = positions,
                                  .rope = rope,
                                  .shape = shape,
                                  .backward = true,
                                  .qkv = qkv,
                                  .maximum = maximum,
                                  .writes = written == Written::yes});
  const auto result =
      cast_as_requested(s, request, rows, cols, maximum, [&](const device::op::Fp8Cast& cast) {
        if (written == Written::yes) return s.device().run(with_source(cast, qkv));
        s.device().run(device::op::RopeBackwardCast{
            .positions = positions, .rope = rope, .shape = shape, .qkv = qkv, .cast = cast});
      });
  if (written == Written::no) {
    EXPECT_EQ(bytes_of(s, qkv), before);
  }
  return result;
}

}  // namespace

std::vector<ComputedCastCase> computed_casts() {
  std::vector<ComputedCastCase> cases;
  for (const CastRequest& request : cast_requests()) {
    // Multiples of a vector and of 16 rows, or not; more than a tile, less, parts of one.
    for (const auto& [rows, cols] :
         {std::array{1, 48}, {16, 16}, {13, 51}, {144, 272}, {37, 136}, {48, 51}}) {
      cases.push_back({fmt::format("rms_norm [{}, {}], {}", rows, cols, request.name),
                       [=, rows = rows, cols = cols](Session& s, Written written) {
                         return norm_cast(s, written, request, rows, cols);
                       }});
      cases.push_back({fmt::format("swiglu_backward [{}, 2 x {}], {}", rows, cols, request.name),
                       [=, rows = rows, cols = cols](Session& s, Written written) {
                         return swiglu_backward_cast(s, written, request, rows, cols);
                       }});
    }
    for (const std::int32_t tokens : {13, 32, 144}) {
      for (const device::AttentionShape shape :
           {device::AttentionShape{4, 2, 16}, {3, 1, 6}, {6, 6, 64}, {2, 1, 128}, {5, 1, 48}}) {
        cases.push_back({fmt::format("rope of {} heads of {}, {} tokens, {}", shape.query_heads,
                                     shape.head_dim, tokens, request.name),
                         [=](Session& s, Written written) {
                           return rope_backward_cast(s, written, request, mixed_documents(tokens), shape);
                         }});
      }
    }
  }
  return cases;
}

void expect_same_cast(Session& s, const ComputedCastCase& operation) {
  SCOPED_TRACE(operation.name);
  const Fp8CastResult expected = operation.run(s, Written::yes);
  EXPECT_GT(expected.maximum, 0);
  EXPECT_EQ(operation.run(s, Written::no), expected);
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
