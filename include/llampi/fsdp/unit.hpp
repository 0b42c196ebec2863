// SPDX-License-Identifier: Apache-2.0
// FSDP units: sets of parameters that are gathered and freed together, and how each lies in one flat buffer.
//
// A unit's flat buffer holds its parameters one after another, each aligned to kAlignment elements (128 bytes
// in the narrowest dtype) except where one joins the one before it; it is padded so that it divides into
// equal shards, one per rank of the shard group: an all-gather lands where kernels read, a reduce-scatter
// starts from where they wrote. Offsets count elements and do not depend on the dtype.
//
// Where a wrap policy's unit has trained and frozen parameters, each kind has a flat buffer, so that the
// frozen ones cost neither gradients nor optimizer state; and so have weights that are gathered in 8 bits. They are
// gathered and freed together.
//
// Of frozen matrices that are kept in 8 bits (DType::int8_blocks), blocks are those of a matrix's flat elements, whatever the
// number of shards: a shard begins with a block, at a multiple of 16 bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llampi/fsdp/storage.hpp"
#include "llampi/model/model.hpp"

namespace llampi::fsdp {

inline constexpr std::int64_t kAlignment = 64;
/// Of units in 8 bits: four blocks of 132 bytes.
inline constexpr std::int64_t kInt8Alignment = 4 * kInt8BlockElements;

struct UnitParameter {
  int parameter = 0;        ///< index into Model::parameters()
  std::int64_t offset = 0;  ///< of its first element in the flat buffer
  std::int64_t elements = 0;
};

struct Unit {
  std::string name;  ///< "model.layers.0"
  std::vector<UnitParameter> parameters;
  std::int64_t shard_elements = 0;
  int shards = 1;
  /// Ranks that hold the same shard and divide its optimizer state into equal parts; 1: each holds the entire state.
  int state_parts = 1;
  bool frozen = false;   ///< no gradient, no optimizer state
  bool fp8 = false;      ///< gathered in float8_e4m3fn: its parameters are LayerSpec::fp8_weights
  bool int8 = false;     ///< kept and gathered in int8_blocks
  bool follows = false;  ///< another part of the unit before it: gathered and freed with it

  std::int64_t flat_elements() const { return shard_elements * shards; }
  std::int64_t part_elements() const { return shard_elements / state_parts; }
};

/// The part of a parameter that lies in one shard.
struct ShardPiece {
  int parameter = 0;
  std::int64_t begin = 0;  ///< first logical element
  std::int64_t elements = 0;
  std::int64_t shard_offset = 0;  ///< of that element in the shard
};

/// What it is gathered in.
DType gathered_dtype(const Unit& unit, const Precision& precision);

/// Lays a set of parameters out over `shards` equal shards, each of `state_parts` equal parts.
Unit make_unit(std::string name, const std::vector<int>& parameters, const std::vector<model::Parameter>& all,
               int shards, int state_parts = 1, std::int64_t alignment = kAlignment);

/// The pieces of shard `shard`, in order; none if it is all padding.
std::vector<ShardPiece> shard_pieces(const Unit& unit, int shard);

/// The unit of each parameter.
std::vector<int> unit_of_parameter(const std::vector<Unit>& units, std::size_t parameters);

}  // namespace llampi::fsdp
