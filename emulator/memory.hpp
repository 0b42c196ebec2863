// SPDX-License-Identifier: Apache-2.0
// Memory of the emulated GPU and page-locked memory: ordinary memory with guards, not zero when it is new.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>

#include "emulator/guarded_memory.hpp"

namespace llampi::emulator {

class Allocations {
 public:
  /// NaN whatever it is read as; aligned to 256 bytes and not more, as cudaMalloc promises.
  void* allocate(std::size_t bytes);
  /// False if it is no allocation.
  bool release(void* data);
  std::size_t used() const { return used_; }

  bool contains(const void* data) const { return find(data) != blocks_.end(); }
  /// @throws Error if [data, data + bytes) begins in an allocation and goes beyond it
  void check(const void* data, std::size_t bytes, const char* call) const;
  /// "byte 4096 of an allocation of 4000 bytes": one that the address is in, or in the guards of; else empty.
  std::string describe(const void* address) const;
  /// Those of up to 1 MiB, for all accesses.
  void forbid(bool forbidden);

 private:
  struct Block {
    std::size_t bytes = 0;
    std::unique_ptr<GuardedMemory> memory;
  };
  using Blocks = std::map<const std::byte*, Block>;
  Blocks::const_iterator find(const void* data) const;

  Blocks blocks_;
  std::size_t used_ = 0;
};

Allocations& device_memory();
Allocations& host_memory();

/// While one exists, the device works and may touch its memory (see guard_device_memory()).
class DeviceWork {
 public:
  DeviceWork();
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;
};

}  // namespace llampi::emulator
