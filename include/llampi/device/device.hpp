// SPDX-License-Identifier: Apache-2.0
// A device: its runtime and its operations. Code that needs only one of them includes only that header.
#pragma once

#include <memory>
#include <string>

#include "llampi/device/operations.hpp"
#include "llampi/device/runtime.hpp"
#include "llampi/device/tuning.hpp"

namespace llampi::device {

class Device : public Runtime, public Operations {
 public:
  /// For the log: kind, kernels, libraries, threads.
  virtual std::string describe() const = 0;
  /// Null where there is nothing to choose. The device's own.
  virtual Autotuner* autotuner() { return nullptr; }
};

/// Sizes as the CPU device with `threads` threads needs them.
std::unique_ptr<OperationSizes> make_cpu_sizes(int threads);
/// The CPU device: float32 arithmetic, `threads` OpenMP threads (at least 1).
/// @throws UserError if the matrix-product library would use a generic kernel on a CPU with AVX2 or AVX-512.
std::unique_ptr<Device> make_cpu_device(int threads);
/// The slow, obvious version of each operation, in float64: what tests compare with. One thread.
std::unique_ptr<Device> make_reference_device();

}  // namespace llampi::device
