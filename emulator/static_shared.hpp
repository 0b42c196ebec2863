// SPDX-License-Identifier: Apache-2.0
// The `__shared__` variables of all kernels of a program, which are its thread-local ones (kernels.hpp). A block finds NaN in
// them. Few kernels have more than some bytes of them, and all together a megabyte: so only pages are filled again that were
// written since. Pages start write-protected, and the first write to one, a fault, makes it writable.
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
  std::span<std::byte> pages_;       ///< the whole pages in it; what lies before and behind is always filled
  std::vector<std::byte*> written_;  ///< pages that are writable
};

}  // namespace llampi::emulator
