// SPDX-License-Identifier: Apache-2.0
// Pages with a page behind them that cannot be touched: an access beyond the end ends the program.
#pragma once

#include <cstddef>

namespace llampi::emulator {

/// Of a page of memory.
std::size_t page_bytes();

class GuardedMemory {
 public:
  /// Zeros; rounded up to whole pages. @throws Error if the system has none left
  explicit GuardedMemory(std::size_t bytes);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::byte* begin() const { return begin_; }
  std::byte* end() const { return begin_ + bytes_; }
  std::size_t bytes() const { return bytes_; }
  /// Whether the address is in it or in the pages around it.
  bool guards(const std::byte* address) const;
  /// With 0xFF: NaN whatever it is read as. Takes no memory, and no time, before it is touched.
  void fill();
  /// Whether any access ends the program.
  void forbid(bool forbidden);

 private:
  std::byte* begin_ = nullptr;  ///< a guard page lies before it, another behind the end
  std::size_t bytes_ = 0;
};

}  // namespace llampi::emulator
