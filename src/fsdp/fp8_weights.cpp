// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fp8_weights.hpp"

#include <algorithm>

#include "llampi/device/fp8_scaling.hpp"

namespace llampi::fsdp {
namespace {

Fp8WeightPlace place_of(const std::vector<int>& members, int unit_index, const Unit& unit,
                        const std::vector<model::Parameter>& parameters) {
  require(unit.fp8, "a weight that is read in 8 bits is in a unit that is not gathered in them");
  Fp8WeightPlace place;
  place.unit = unit_index;
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

/// What stands behind `before`.
Part part_behind(const Part& before, std::int64_t rows, std::int64_t cols) {
  return {.offset = before.offset + before.rows * before.cols, .rows = rows, .cols = cols};
}

/// Its maxima and scales behind those of the weight before it.
void place_scales(Fp8WeightPlace& weight, const Fp8WeightPlace& before) {
  if (!weight.in_blocks) {
    const auto shape = device::fp8_scale_shape(device::Fp8Scaling::tensor, weight.rows, weight.cols);
    weight.maxima = part_behind(before.maxima, 1, 1);
    weight.scales = weight.transposed_scales = part_behind(before.transposed_scales, shape.rows, shape.cols);
    return;
  }
  const auto part = [](const Part& behind, std::int64_t rows, std::int64_t cols) {
    const auto shape = device::fp8_scale_shape(device::Fp8Scaling::blocks, rows, cols);
    return part_behind(behind, shape.rows, shape.cols);
  };
  weight.maxima =
      part_behind(before.maxima, weight.rows / device::kFp8Block, weight.cols / device::kFp8Block);
  weight.scales = part(before.transposed_scales, weight.rows, weight.cols);
  weight.transposed_scales = part(weight.scales, weight.cols, weight.rows);
}

}  // namespace

std::vector<Fp8WeightPlace> find_fp8_weights(const std::vector<model::LayerSpec>& specs,
                                             const std::vector<Unit>& units,
                                             const std::vector<model::Parameter>& parameters) {
  const auto unit_of = unit_of_parameter(units, parameters.size());
  std::vector<Fp8WeightPlace> places;
  for (int s = 0; s < static_cast<int>(specs.size()); ++s) {
    for (const auto& members : specs[s].fp8_weights) {
      const int unit = unit_of[members.front()];
      Fp8WeightPlace place = place_of(members, unit, units[unit], parameters);
      place.layer = s;
      place.in_blocks = specs[s].fp8_blocks;
      place_scales(place, places.empty() ? Fp8WeightPlace{} : places.back());
      places.push_back(place);
    }
  }
  return places;
}

std::int64_t fp8_maxima_elements(const std::vector<Fp8WeightPlace>& weights) {
  return weights.empty() ? 0 : part_behind(weights.back().maxima, 0, 0).offset;
}

std::int64_t fp8_scales_elements(const std::vector<Fp8WeightPlace>& weights) {
  return weights.empty() ? 0 : part_behind(weights.back().transposed_scales, 0, 0).offset;
}

std::vector<Fp8Piece> fp8_pieces(const std::vector<Fp8WeightPlace>& weights, const std::vector<Unit>& units,
                                 int unit, int shard) {
  const std::int64_t first = units[unit].shard_elements * shard, last = first + units[unit].shard_elements;
  std::vector<Fp8Piece> pieces;
  for (int w = 0; w < static_cast<int>(weights.size()); ++w) {
    if (weights[w].unit != unit) continue;
    const std::int64_t begin = std::max(weights[w].offset, first);
    const std::int64_t end = std::min(weights[w].offset + weights[w].rows * weights[w].cols, last);
    if (begin < end) pieces.push_back({w, begin - first, end - first, begin - weights[w].offset});
  }
  return pieces;
}

}  // namespace llampi::fsdp
