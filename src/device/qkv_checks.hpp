// SPDX-License-Identifier: Apache-2.0
// What every device refuses of an op::QkvTransform.
#pragma once

#include "llampi/core/error.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::device {

inline void check_qkv_transform(const op::QkvTransform& transform) {
  require(static_cast<bool>(transform.q_norm) == static_cast<bool>(transform.k_norm),
          "norms of queries and of keys: both or neither");
  require(!transform.bias || !transform.has_norms(), "a bias and norms of q, k and v exclude each other");
}

}  // namespace llampi::device
