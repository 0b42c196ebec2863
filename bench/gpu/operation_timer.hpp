// SPDX-License-Identifier: Apache-2.0
// The time of each operation of a device.
#pragma once

#include <map>
#include <string>

#include "llampi/device/device.hpp"

namespace llampi::bench {

/// What was done under one name, since reset().
struct OperationTime {
  double seconds = 0;
  double flops = 0;  ///< of matrix products and attention (causal: half); 0 for all else
  std::int64_t calls = 0;
};

/// The host waits before and after each operation, so that nothing overlaps and the launch of a kernel
/// counts: the times add up to more than a step takes that runs freely. Copies between host and device are no
/// operations, and are not timed.
class OperationTimer {
 public:
  /// Until its own end, which the device must outlive.
  explicit OperationTimer(device::Device& device);
  ~OperationTimer() { device_.decorate({}); }
  OperationTimer(const OperationTimer&) = delete;
  OperationTimer& operator=(const OperationTimer&) = delete;

  void reset() { times_.clear(); }
  /// By operation; those on a weight, by its shape too: "projection_residual 4096x14336".
  const std::map<std::string, OperationTime>& times() const { return times_; }

 private:
  device::Device& device_;
  std::map<std::string, OperationTime> times_;
};

}  // namespace llampi::bench
