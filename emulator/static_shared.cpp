// SPDX-License-Identifier: Apache-2.0
#include "emulator/static_shared.hpp"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>

#include "emulator/guarded_memory.hpp"
#include "llampi/core/error.hpp"

namespace llampi::emulator {
namespace {

void make_nan(std::span<std::byte> memory) {
  if (!memory.empty()) std::memset(memory.data(), 0xFF, memory.size());
}

bool set_writable(std::span<std::byte> pages, bool writable) {
  return mprotect(pages.data(), pages.size(), writable ? PROT_READ | PROT_WRITE : PROT_READ) == 0;
}

std::span<std::byte> thread_local_memory() {
  std::span<std::byte> memory;
  const auto find = [](dl_phdr_info* program, std::size_t, void* result) {
    for (int i = 0; i < program->dlpi_phnum; ++i) {
      if (program->dlpi_phdr[i].p_type != PT_TLS || program->dlpi_tls_data == nullptr) continue;
      *static_cast<std::span<std::byte>*>(result) = {static_cast<std::byte*>(program->dlpi_tls_data),
                                                     program->dlpi_phdr[i].p_memsz};
    }
    return 1;  // the program itself comes first: go no further
  };
  dl_iterate_phdr(find, &memory);
  return memory;
}

}  // namespace

StaticShared::StaticShared() : memory_(thread_local_memory()), before_(memory_) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory_.data()), end = begin + memory_.size();
  const std::size_t page = page_bytes(), first = (begin + page - 1) / page * page, last = end / page * page;
  if (last <= first) return;
  before_ = memory_.first(first - begin);
  pages_ = memory_.subspan(first - begin, last - first);
  behind_ = memory_.subspan(last - begin);
  written_.reserve(pages_.size() / page);  // nothing is allocated in the handler of a fault
  make_nan(pages_);
  require(set_writable(pages_, false), "mprotect failed for the pages of shared variables");
}

void StaticShared::protect() {
  for (const auto page : written_) {
    make_nan(page);
    require(set_writable(page, false), "mprotect failed for the pages of shared variables");
  }
  written_.clear();
}

void StaticShared::fill() {
  make_nan(before_);
  make_nan(behind_);
  for (const auto page : written_) make_nan(page);
}

bool StaticShared::allow_write(const void* address) {
  const std::less<const void*> less;
  if (less(address, pages_.data()) || !less(address, pages_.data() + pages_.size())) return false;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(address) - pages_.data());
  const auto page = pages_.subspan(offset / page_bytes() * page_bytes(), page_bytes());
  const bool known = std::ranges::find(written_, page.data(), &std::span<std::byte>::data) != written_.end();
  if (known || !set_writable(page, true)) return false;
  written_.push_back(page);
  return true;
}

}  // namespace llampi::emulator
