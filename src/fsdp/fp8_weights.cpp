// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fp8_weights.hpp"

#include <algorithm>

namespace llampi::fsdp {
namespace {

Fp8WeightPlace place_of(const std::vector<int>& members, int unit_index, const Unit& unit,
                        const std::vector<model::Parameter>& parameters) {
  require(unit.fp8, "a weight that is read in 8 bits is in a unit that is not gathered in them");
  Fp8WeightPlace place{.unit = unit_index};
  for (const int p : members) {
    const auto& shape = parameters[p].shape;
    require(shape.size() == 2, "what is multiplied in 8 bits is a matrix");
    const auto here = std::ranges::find(unit.parameters, p, &UnitParameter::parameter);
    require(here != unit.parameters.end(), "the parameters of a weight in 8 bits are of several units");
    if (place.rows == 0) place.offset = here->offset, place.cols = shape[1];
    require(shape[1] == place.cols && here->offset == place.offset + place.rows * place.cols,
            "the parameters of a weight in 8 bits do not join");
    place.rows += shape[0];
  }
  return place;
}

}  // namespace

std::vector<Fp8WeightPlace> find_fp8_weights(const std::vector<model::StageSpec>& specs,
                                             const std::vector<Unit>& units,
                                             const std::vector<model::Parameter>& parameters) {
  const auto unit_of = unit_of_parameter(units, parameters.size());
  std::vector<Fp8WeightPlace> places;
  for (int s = 0; s < static_cast<int>(specs.size()); ++s) {
    for (const auto& members : specs[s].fp8_weights) {
      const int unit = unit_of[members.front()];
      places.push_back(place_of(members, unit, units[unit], parameters));
      places.back().stage = s;
    }
  }
  return places;
}

std::vector<Fp8Piece> fp8_pieces(const std::vector<Fp8WeightPlace>& weights, const std::vector<Unit>& units,
                                 int unit, int shard) {
  const std::int64_t first = units[unit].shard_elements * shard, last = first + units[unit].shard_elements;
  std::vector<Fp8Piece> pieces;
  for (int w = 0; w < static_cast<int>(weights.size()); ++w) {
    if (weights[w].unit != unit) continue;
    const std::int64_t begin = std::max(weights[w].offset, first);
    const std::int64_t end = std::min(weights[w].offset + weights[w].rows * weights[w].cols, last);
    if (begin < end) pieces.push_back({w, begin - first, end - first});
  }
  return pieces;
}

}  // namespace llampi::fsdp
