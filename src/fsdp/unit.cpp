// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/unit.hpp"

#include <algorithm>

#include "llampi/core/integers.hpp"

namespace llampi::fsdp {

DType gathered_dtype(const Unit& unit, const Precision& precision) {
  if (unit.fp8) return DType::float8_e4m3fn;
  return unit.int8 ? DType::int8_blocks : precision.gathered(unit.frozen);
}

Unit make_unit(std::string name, const std::vector<int>& parameters, const std::vector<model::Parameter>& all,
               int shards, int state_parts, std::int64_t alignment) {
  Unit unit;
  unit.name = std::move(name);
  unit.shards = shards;
  unit.state_parts = state_parts;
  std::int64_t end = 0;
  for (const int p : parameters) {
    if (!all[p].fused_with_previous) end = round_up(end, alignment);
    unit.parameters.push_back({p, end, all[p].elements()});
    end += all[p].elements();
  }
  unit.shard_elements = round_up(ceil_div(end, shards), alignment * state_parts);
  return unit;
}

std::vector<ShardPiece> shard_pieces(const Unit& unit, int shard) {
  const std::int64_t shard_begin = shard * unit.shard_elements;
  const std::int64_t shard_end = shard_begin + unit.shard_elements;
  std::vector<ShardPiece> pieces;
  for (const auto& p : unit.parameters) {
    const std::int64_t begin = std::max(p.offset, shard_begin);
    const std::int64_t end = std::min(p.offset + p.elements, shard_end);
    if (begin < end) pieces.push_back({p.parameter, begin - p.offset, end - begin, begin - shard_begin});
  }
  return pieces;
}

std::vector<int> unit_of_parameter(const std::vector<Unit>& units, std::size_t parameters) {
  std::vector<int> result(parameters, -1);
  for (std::size_t u = 0; u < units.size(); ++u) {
    for (const auto& p : units[u].parameters) result[p.parameter] = static_cast<int>(u);
  }
  return result;
}

}  // namespace llampi::fsdp
