// SPDX-License-Identifier: Apache-2.0
#include "emulator/guarded_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include "llampi/core/error.hpp"

namespace llampi::emulator {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

GuardedMemory::GuardedMemory(std::size_t bytes) {
  const std::size_t page = page_bytes();
  bytes_ = (bytes + page - 1) / page * page;
  void* mapped =
      mmap(nullptr, bytes_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(mapped != MAP_FAILED, "mmap: no memory for the emulated GPU");
  begin_ = static_cast<std::byte*>(mapped) + page;
  require(bytes_ == 0 || mprotect(begin_, bytes_, PROT_READ | PROT_WRITE) == 0,
          "mprotect: no memory for the emulated GPU");
}

bool GuardedMemory::guards(const std::byte* address) const {
  return address >= begin() - page_bytes() && address < end() + page_bytes();
}

void GuardedMemory::forbid(bool forbidden) {
  require(bytes_ == 0 || mprotect(begin_, bytes_, forbidden ? PROT_NONE : PROT_READ | PROT_WRITE) == 0,
          "mprotect");
}

GuardedMemory::~GuardedMemory() { munmap(begin_ - page_bytes(), bytes_ + 2 * page_bytes()); }

}  // namespace llampi::emulator
