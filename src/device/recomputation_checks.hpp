// SPDX-License-Identifier: Apache-2.0
// What every device refuses of operations of the backward pass that can write what the forward pass made once more.
#pragma once

#include "llampi/core/error.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::device {

inline void check_recomputation(const op::RmsNormBackward& o) {
  require(!o.y || !o.maximum, "a gradient that is measured, and y written, at once");
}

inline void check_recomputation(const op::SwigluBackward& o) {
  require(!o.activated || (o.writes && !o.maximum),
          "what is activated is written with the gradient of gate_up, and not measured");
}

}  // namespace llampi::device
