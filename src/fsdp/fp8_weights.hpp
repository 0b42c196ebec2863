// SPDX-License-Identifier: Apache-2.0
// Weights that layers read in 8 bits: where each lies in its unit.
#pragma once

#include <cstdint>
#include <vector>

#include "llampi/fsdp/program.hpp"
#include "llampi/fsdp/unit.hpp"
#include "llampi/model/model.hpp"

namespace llampi::fsdp {

/// Parameters that join, as one matrix.
struct Fp8WeightPlace {
  int layer = 0;
  int unit = 0;
  std::int64_t offset = 0;  ///< of the first element in the unit's flat buffer
  std::int64_t rows = 0, cols = 0;
  bool in_blocks = false;          ///< it has a scale for each; else one
  Part maxima;                     ///< of the buffer of maxima
  Part scales, transposed_scales;  ///< of the buffer of scales; one scale is that of both
};

/// In the order of the layers and of LayerSpec::fp8_weights.
/// @throws Error if parameters of one do not join, or are of a unit that is not gathered in 8 bits
std::vector<Fp8WeightPlace> find_fp8_weights(const std::vector<model::LayerSpec>& specs,
                                             const std::vector<Unit>& units,
                                             const std::vector<model::Parameter>& parameters);

/// What the buffers of maxima and of scales hold.
std::int64_t fp8_maxima_elements(const std::vector<Fp8WeightPlace>& weights);
std::int64_t fp8_scales_elements(const std::vector<Fp8WeightPlace>& weights);

/// The part of a weight that lies in one shard.
struct Fp8Piece {
  int weight = 0;
  std::int64_t begin = 0, end = 0;  ///< elements of the shard
  std::int64_t first = 0;           ///< the element of the weight that stands at `begin`
};
/// Of shard `shard` of unit `unit`, in order.
std::vector<Fp8Piece> fp8_pieces(const std::vector<Fp8WeightPlace>& weights, const std::vector<Unit>& units,
                                 int unit, int shard);

}  // namespace llampi::fsdp
