// SPDX-License-Identifier: Apache-2.0
// What a rank has of the state of training.
#pragma once

#include <cstdint>

#include "llampi/core/tensor.hpp"

namespace llampi::fsdp {

/// A piece of a parameter and its optimizer state in this rank's memory, the device's or the host's.
struct StatePiece {
  int parameter = 0;
  std::int64_t begin = 0;  ///< first logical element
  Tensor master;
  Tensor exp_avg, exp_avg_sq;  ///< as long, or empty: frozen, or without optimizer state
  bool in_host_memory = false;
};

}  // namespace llampi::fsdp
