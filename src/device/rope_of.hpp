// SPDX-License-Identifier: Apache-2.0
// The rotation that is a part of the products of q, k and v, as an operation of its own.
#pragma once

#include "llampi/device/operations.hpp"

namespace llampi::device {

/// Of the product, once o.qkv or, with norms, o.transform.product has it.
inline op::Rope rope_of(const op::QkvRope& o) {
  return {.positions = o.positions,
          .rope = o.rope,
          .shape = o.shape,
          .backward = false,
          .qkv = o.qkv,
          .transform = o.transform};
}

/// What is computed before it is cast.
inline op::Rope rope_of(const op::RopeBackwardCast& o) {
  return {.positions = o.positions, .rope = o.rope, .shape = o.shape, .backward = true, .qkv = o.qkv};
}

}  // namespace llampi::device
