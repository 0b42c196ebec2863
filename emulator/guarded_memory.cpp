// SPDX-License-Identifier: Apache-2.0
#include "emulator/guarded_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "llampi/core/error.hpp"

namespace llampi::emulator {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

namespace {

constexpr std::size_t kPattern = std::size_t{1} << 20;

/// A file in memory: so many bytes of 0xFF.
int pattern() {
  static const int file = [] {
    const int made = memfd_create("pattern", MFD_CLOEXEC);
    const std::vector<unsigned char> bytes(kPattern, 0xFF);
    require(made >= 0 && write(made, bytes.data(), kPattern) == static_cast<ssize_t>(kPattern),
            "memfd_create: no memory for the emulated GPU");
    return made;
  }();
  return file;
}

}  // namespace

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

void GuardedMemory::fill() {
  std::byte* at = begin_;
  for (; end() - at >= static_cast<std::ptrdiff_t>(kPattern); at += kPattern) {
    require(mmap(at, kPattern, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, pattern(),
                 0) == at,
            "mmap: no memory for the emulated GPU");
  }
  std::memset(at, 0xFF, static_cast<std::size_t>(end() - at));
}

GuardedMemory::~GuardedMemory() { munmap(begin_ - page_bytes(), bytes_ + 2 * page_bytes()); }

}  // namespace llampi::emulator
