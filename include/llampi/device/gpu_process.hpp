// SPDX-License-Identifier: Apache-2.0
// What this process has of a GPU's memory, as NVIDIA's driver accounts for it: on a GPU that others use too,
// that is less than what is taken of it. The driver's library (libnvidia-ml.so.1) is opened at run time;
// nothing is linked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace llampi::device {

class GpuProcessMemory {
 public:
  /// @param bus_id GpuProperties::bus_id
  explicit GpuProcessMemory(const std::string& bus_id);
  ~GpuProcessMemory();

  /// Bytes of this process, its CUDA context included. None where the driver does not say: it may know
  /// processes by other numbers than they know themselves (in a container), or without their memory. Where it
  /// names one process only, that is this one.
  /// @param in_use of the GPU's memory, by whomever: the driver is asked again when that has changed
  /// @param at_least what this process has certainly allocated; less is taken for an error of the driver
  std::optional<std::int64_t> bytes(std::int64_t in_use, std::int64_t at_least);

 private:
  struct Library;
  std::unique_ptr<Library> library_;  ///< null: there is none
  std::int64_t last_in_use_ = -1;
  std::optional<std::int64_t> last_;
};

}  // namespace llampi::device
