// SPDX-License-Identifier: Apache-2.0
// Times of the operations that are issued to a device.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "llampi/device/device.hpp"
#include "llampi/plan/compute_time.hpp"

namespace llampi::measure {

/// Of all calls of one kind of operation, with the same shapes.
struct OperationTime {
  plan::Terms amounts;  ///< of a call, the mean
  double seconds = 0;   ///< of all calls
  int calls = 0;
  bool optimizes = false;  ///< gradient norm and update
};

/// Times all operations of a device while it lives: with events, so that a GPU is not held up.
class OperationTimer {
 public:
  OperationTimer(device::Device& device, plan::AttentionKernels attention);
  ~OperationTimer() { device_.decorate({}); }
  OperationTimer(const OperationTimer&) = delete;
  OperationTimer& operator=(const OperationTimer&) = delete;

  /// Since the last call, by name with the shape of a weight. Waits for the device.
  std::map<std::string, OperationTime> take();

 private:
  struct Timed {
    std::string name;
    plan::Terms amounts;
    bool optimizes;
    device::Event begin, end;
  };
  device::Device& device_;
  std::vector<Timed> timed_;
};

}  // namespace llampi::measure
