// SPDX-License-Identifier: Apache-2.0
#include "emulator/memory.hpp"

#include <algorithm>

#include "emulator/control.hpp"
#include "emulator/faults.hpp"
#include "llampi/core/error.hpp"

namespace llampi::emulator {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kMostForbidden = std::size_t{1} << 20;  // to forbid and allow more takes long

std::size_t round_up(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Guard {
  bool wanted = false;
  int workers = 0;  ///< DeviceWork objects
};
Guard& guard() {
  static Guard state;
  return state;
}

}  // namespace

/// At the end of its pages, so that the guard behind them begins where the allocation ends.
void* Allocations::allocate(std::size_t bytes) {
  explain_faults();
  auto memory = std::make_unique<GuardedMemory>(round_up(bytes));
  std::byte* data = memory->end() - round_up(bytes);
  memory->fill();
  used_ += bytes;
  const bool forbidden = this == &device_memory() && guard().wanted && guard().workers == 0;
  if (forbidden && bytes <= kMostForbidden) memory->forbid(true);
  blocks_[data] = {bytes, std::move(memory)};
  return data;
}

bool Allocations::release(void* data) {
  const auto block = blocks_.find(static_cast<std::byte*>(data));
  if (block == blocks_.end()) return false;
  used_ -= block->second.bytes;
  blocks_.erase(block);
  return true;
}

void Allocations::check(const void* data, std::size_t bytes, const char* call) const {
  const auto block = find(data);
  if (block == blocks_.end()) return;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) - block->first);
  if (offset + bytes > block->second.bytes) {
    throw Error(fmt::format("{}: {} bytes from byte {} on of an allocation of {}", call, bytes, offset,
                            block->second.bytes));
  }
}

std::string Allocations::describe(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  for (const auto& [data, block] : blocks_) {
    if (block.memory->guards(byte))
      return fmt::format("byte {} of an allocation of {} bytes", byte - data, block.bytes);
  }
  return "";
}

void Allocations::forbid(bool forbidden) {
  for (const auto& [data, block] : blocks_) {
    if (block.bytes <= kMostForbidden) block.memory->forbid(forbidden);
  }
}

Allocations::Blocks::const_iterator Allocations::find(const void* data) const {
  const auto* byte = static_cast<const std::byte*>(data);
  auto block = blocks_.upper_bound(byte);
  if (block == blocks_.begin()) return blocks_.end();
  --block;
  return byte < block->first + block->second.bytes ? block : blocks_.end();
}

Allocations& device_memory() {
  static Allocations memory;
  return memory;
}

Allocations& host_memory() {
  static Allocations memory;
  return memory;
}

DeviceWork::DeviceWork() {
  if (guard().workers++ == 0 && guard().wanted) device_memory().forbid(false);
}

DeviceWork::~DeviceWork() {
  if (--guard().workers == 0 && guard().wanted) device_memory().forbid(true);
}

void guard_device_memory(bool wanted) {
  guard().wanted = wanted;
  device_memory().forbid(wanted);
}

}  // namespace llampi::emulator
