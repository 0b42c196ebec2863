// SPDX-License-Identifier: Apache-2.0
#include "llampi/device/host_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "llampi/core/integers.hpp"
#include "llampi/core/text.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

/// Gives back the part of the mapping before the first huge page and what is behind the last one.
std::byte* trim(std::byte* begin, std::int64_t mapped, std::int64_t wanted) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const auto front = static_cast<std::int64_t>((kHugePage - address % kHugePage) % kHugePage);
  if (front > 0) munmap(begin, static_cast<std::size_t>(front));
  const std::int64_t back = mapped - front - wanted;
  if (back > 0) munmap(begin + front + wanted, static_cast<std::size_t>(back));
  return begin + front;
}

}  // namespace

Memory allocate_host_memory(std::int64_t bytes) {
  require(bytes >= 0, "memory of negative size");
  if (bytes == 0) return {};
  const bool huge = bytes >= kHugePage;
  const std::int64_t wanted = round_up(bytes, huge ? kHugePage : kPage);
  const std::int64_t mapped = huge ? wanted + kHugePage : wanted;
  void* data = mmap(nullptr, static_cast<std::size_t>(mapped), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw OutOfMemory(fmt::format(
        "out of memory: {} of host memory cannot be allocated ({}); request more (--mem), offload less or use more ranks",
        format_bytes(bytes), std::strerror(errno)));
  }
  if (huge) {
    data = trim(static_cast<std::byte*>(data), mapped, wanted);
    madvise(data, static_cast<std::size_t>(wanted), MADV_HUGEPAGE);  // advice: small pages work as well
  }
  return Memory(data, bytes, [wanted](void* begin) {
    if (begin != nullptr) munmap(begin, static_cast<std::size_t>(wanted));
  });
}

}  // namespace llampi::device
