// SPDX-License-Identifier: Apache-2.0
// From an operation to a backend's overload for it.
#pragma once

#include "llampi/core/error.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::device {

/// Calls the overload of backend.execute() for this operation.
/// @throws Error naming the operation if there is none
template <class Backend>
void execute_on(Backend& backend, const Operation& operation) {
  std::visit(
      [&](const auto& o) {
        if constexpr (requires { backend.execute(o); }) {
          backend.execute(o);
        } else {
          throw Error(fmt::format("this device has no {}", o.kName));
        }
      },
      operation);
}

}  // namespace llampi::device
