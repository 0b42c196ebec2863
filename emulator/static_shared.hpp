// SPDX-License-Identifier: Apache-2.0
// The `__shared__` variables of all kernels of a program, which are its thread-local ones (kernels.hpp). A block finds NaN in
// them. A kernel has few, all kernels together about 1 MB: so only pages written since the last fill are filled again. Pages are
// write-protected; the first write faults, and the handler makes the page writable.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace llampi::emulator {

class StaticShared {
 public:
  /// The calling thread's. There is one object of this class.
  StaticShared();

  std::span<std::byte> memory() const { return memory_; }
  /// Before the first block of a kernel: the pages that earlier kernels wrote are NaN and protected again.
  void protect();
  /// Before each block: what the kernel's other blocks wrote is NaN again.
  void fill();
  /// In the handler of a fault: whether it was the first write to a page, which may be repeated now.
  bool allow_write(const void* address);

 private:
  std::span<std::byte> memory_;
  std::span<std::byte> before_, pages_, behind_;  ///< its whole pages; what lies around them is always filled
  std::vector<std::span<std::byte>> written_;     ///< pages that are writable
};

}  // namespace llampi::emulator
