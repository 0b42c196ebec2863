// SPDX-License-Identifier: Apache-2.0
#include "emulator/static_shared.hpp"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>

#include "llampi/core/error.hpp"

namespace llampi::emulator {
namespace {

const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

void make_nan(std::byte* begin, std::size_t bytes) { std::memset(begin, 0xFF, bytes); }
void make_nan(std::span<std::byte> memory) { make_nan(memory.data(), memory.size()); }

bool set_writable(std::byte* begin, std::size_t bytes, bool writable) {
  return mprotect(begin, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ) == 0;
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

StaticShared::StaticShared() : memory_(thread_local_memory()) {
  const auto page_at = [](const std::byte* address) {
    return reinterpret_cast<std::uintptr_t>(address) / kPage;
  };
  if (memory_.empty()) return;
  const std::size_t before = page_at(memory_.data() - 1) + 1,
                    behind = page_at(memory_.data() + memory_.size());
  if (behind <= before) {
    pages_ = memory_.first(0);
    return;
  }
  pages_ = {reinterpret_cast<std::byte*>(before * kPage), (behind - before) * kPage};
  written_.reserve(behind - before);  // nothing is allocated in the handler of a fault
  make_nan(pages_);
  require(set_writable(pages_.data(), pages_.size(), false), "mprotect: shared variables");
}

void StaticShared::protect() {
  for (std::byte* page : written_) {
    make_nan(page, kPage);
    require(set_writable(page, kPage, false), "mprotect: shared variables");
  }
  written_.clear();
}

void StaticShared::fill() {
  make_nan(memory_.first(static_cast<std::size_t>(pages_.data() - memory_.data())));
  make_nan(memory_.subspan(static_cast<std::size_t>(pages_.data() - memory_.data()) + pages_.size()));
  for (std::byte* page : written_) make_nan(page, kPage);
}

bool StaticShared::allow_write(const void* address) {
  const std::less<const void*> less;
  if (less(address, pages_.data()) || !less(address, pages_.data() + pages_.size())) return false;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(address) - pages_.data());
  std::byte* const page = pages_.data() + offset / kPage * kPage;
  if (std::ranges::find(written_, page) != written_.end() || !set_writable(page, kPage, true)) return false;
  written_.push_back(page);
  return true;
}

}  // namespace llampi::emulator
