// SPDX-License-Identifier: Apache-2.0
// What a rank has of the state of training.
#pragma once

#include <cstdint>

#include "llampi/core/tensor.hpp"

namespace llampi::fsdp {

/// A piece of a parameter and its optimizer state: views, [1, elements], of this rank's memory, the device's or the host's. The engine
/// owns it and lives longer; until when it may be read or written, Engine says of each function that gives such pieces.
struct StatePiece {
  int parameter = 0;
  std::int64_t begin = 0;  ///< first logical element
  /// In Precision::master; of a frozen parameter as it is gathered, in int8_blocks too.
  Tensor master;
  /// As long, in Precision::moment; or empty: frozen, or without optimizer state.
  Tensor exp_avg, exp_avg_sq;
  bool in_host_memory = false;
};

}  // namespace llampi::fsdp
