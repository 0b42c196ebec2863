// SPDX-License-Identifier: Apache-2.0
// The time of each operation of a device.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "llampi/device/device.hpp"

namespace llampi::bench {

/// What was done under one name, since reset().
struct OperationTime {
  double seconds = 0;
  double flops = 0;  ///< of matrix products and attention (causal: half); 0 for all else
  std::int64_t calls = 0;
};

/// Points before and after an operation, for which nobody waits before times(): operations run as they do in a step that is
/// issued, with the gaps between them. Copies between host and
/// device are no operations, and are not timed.
class OperationTimer {
 public:
  /// Until its own end, which the device must outlive.
  explicit OperationTimer(device::Device& device);
  ~OperationTimer() { device_.decorate({}); }
  OperationTimer(const OperationTimer&) = delete;
  OperationTimer& operator=(const OperationTimer&) = delete;

  void reset() { timed_.clear(); }
  /// By operation; those on a weight, by its shape too: "projection_residual 4096x14336". Waits for the device.
  std::map<std::string, OperationTime> times() const;

 private:
  struct Timed {
    std::string name;
    double flops;
    device::Event begin, end;
  };
  device::Device& device_;
  std::vector<Timed> timed_;
};

}  // namespace llampi::bench
