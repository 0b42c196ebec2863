// SPDX-License-Identifier: Apache-2.0
// The operations of products in 8 bits, for the tests of all devices. Casts are compared bit by bit, products as the
// cases of device_operations.hpp are.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llampi/device/fp8_scaling.hpp"
#include "support/device_operations.hpp"

namespace llampi::test {

/// What op::Fp8Cast is asked for.
struct Fp8CastCase {
  std::string name;
  Values source;
  DType dtype = DType::float8_e4m3fn;
  bool values = true, transposed = true, scale = true, counts = true;
  /// Elements by which the source and the values begin later than at an aligned address.
  std::int64_t source_offset = 0, values_offset = 0;
  /// Its bits, instead of what op::Fp8Maximum finds.
  std::optional<std::int32_t> maximum = {};
};

/// Empty, or zero, where it was not asked for.
struct Fp8CastResult {
  std::int32_t maximum = 0;
  std::vector<std::uint8_t> values, transposed;
  std::vector<float> scale;
  std::int64_t saturated = 0, zero_scales = 0;

  bool operator==(const Fp8CastResult&) const = default;
};

/// The source has the session's dtype. It and what is around the outputs must stay as they are.
Fp8CastResult cast_to_fp8(Session& session, const Fp8CastCase& cast);

/// Both formats; matrices of multiples of 16 and others, vectors that begin anywhere, with and without each output;
/// NaN, infinities, subnormals, zeros.
std::vector<Fp8CastCase> fp8_casts();
/// Of every bfloat16, with scales from the smallest to the largest.
std::vector<Fp8CastCase> fp8_casts_of_every_bfloat16();

/// op::Fp8Transpose of bytes that all differ from their neighbours.
std::vector<std::uint8_t> transposed_fp8(Session& session, std::int64_t rows, std::int64_t cols,
                                         std::vector<std::uint8_t>& source);

/// op::Fp8Scales of some maxima.
std::vector<float> fp8_scales(Session& session);

/// What op::Fp8TileCast is asked for.
struct Fp8TileCastCase {
  std::string name;
  Values source;
  DType dtype = DType::float8_e4m3fn;
  bool values = true, transposed = true, counts = true;
};

/// Empty, or zero, where it was not asked for.
struct Fp8TileCastResult {
  std::int32_t maximum = 0;
  std::vector<std::uint8_t> values, transposed;
  std::vector<float> scales, transposed_scales;
  std::int64_t saturated = 0, zero_scales = 0;

  bool operator==(const Fp8TileCastResult&) const = default;
};

/// As cast_to_fp8().
Fp8TileCastResult cast_tiles_to_fp8(Session& session, const Fp8TileCastCase& cast);

/// Both formats, with and without each output; tiles of great and of small numbers, of zeros, of what is not finite;
/// every bfloat16 along rows and along columns.
std::vector<Fp8TileCastCase> fp8_tile_casts();

/// A weight in parts: op::Fp8BlockMaximum of each in turn, op::Fp8BlockScales, and op::Fp8BlockCast of each.
struct Fp8BlockCase {
  std::string name;
  Values weight;
  std::vector<std::int64_t> cuts = {};  ///< where a part ends and the next begins
  bool counts = true;
  /// Elements by which the parts, and their values, lie elsewhere than the weight would if it began at an aligned address.
  std::int64_t source_shift = 0, values_shift = 0;
};

struct Fp8BlockResult {
  std::vector<std::int32_t> maxima;
  std::vector<float> scales, transposed_scales;
  std::vector<std::uint8_t> values;
  std::int64_t saturated = 0, zero_scales = 0;

  bool operator==(const Fp8BlockResult&) const = default;
};

Fp8BlockResult cast_blocks_to_fp8(Session& session, const Fp8BlockCase& blocks);

/// Weights in 1 to 7 parts that begin and end anywhere, aligned and not; with what is not finite, of zeros.
std::vector<Fp8BlockCase> fp8_block_casts();
/// The same weight in one part.
Fp8BlockCase in_one_part(Fp8BlockCase blocks);

/// What an op::Fp8Product adds its product to.
enum class Fp8Added : std::uint8_t { nothing, y, residual, y_as_residual };
inline constexpr Fp8Added kFp8Added[] = {Fp8Added::nothing, Fp8Added::y, Fp8Added::residual,
                                         Fp8Added::y_as_residual};

/// y (+)= a b^T (+ residual), [m, n] = [m, k] [n, k]^T, with y in the session's dtype. The operands are cast on
/// the device. No gradient. With scales of blocks, numbers of one operand are the greater the smaller those of the other
/// are that they are multiplied with, so that all of them count.
struct Fp8ProductCase {
  std::int64_t m, n, k;
  DType a = DType::float8_e4m3fn, b = DType::float8_e4m3fn;
  Fp8Added added = Fp8Added::nothing;
  bool fast_accumulation = false;
  device::Fp8Scaling a_scaling = device::Fp8Scaling::tensor, b_scaling = device::Fp8Scaling::tensor;
};
/// Of all dtypes, scales of blocks and tiles, and kinds of addition that there are.
std::vector<Fp8ProductCase> fp8_block_products(std::int64_t m, std::int64_t n, std::int64_t k);
OperationCase fp8_product(const Fp8ProductCase& product);

/// An operation that may measure what it writes: it is run with that `maximum`, or an empty one, and gives what it wrote.
struct MeasuringCase {
  std::string name;
  std::function<Tensor(Session&, const Tensor& maximum)> run;
};
std::vector<MeasuringCase> measuring_operations();
/// The bits are those that op::Fp8Maximum would leave, and all that is written is as without it.
void expect_measures(Session& session, const MeasuringCase& operation);

/// Whether an operation writes what is cast.
enum class Written : bool { no, yes };
/// An operation that measures its output, and its cast: with an op::Fp8Cast of what was written, or with the operation that
/// computes it as it casts it.
struct ComputedCastCase {
  std::string name;
  std::function<Fp8CastResult(Session&, Written)> run;
};
/// Matrices that begin and end anywhere, with what is not finite, and all that a cast may be asked for.
std::vector<ComputedCastCase> computed_casts();
/// Both ways give the same, and the way without writing leaves the operands as they were.
void expect_same_cast(Session& session, const ComputedCastCase& operation);

}  // namespace llampi::test
