// SPDX-License-Identifier: Apache-2.0
// Where buffers lie, given when they hold something.
#include <algorithm>
#include <numeric>

#include "llampi/fsdp/placement.hpp"

namespace llampi::fsdp {
namespace {

constexpr std::int64_t kBufferAlignment = 256;

bool alive_together(const Buffer& a, const Buffer& b) {
  if (a.persistent || b.persistent) return true;
  std::size_t i = 0, j = 0;
  while (i < a.live.size() && j < b.live.size()) {
    if (a.live[i].last < b.live[j].first) {
      ++i;
    } else if (b.live[j].last < a.live[i].first) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

/// The lowest offset at which `buffer` meets none of `placed`.
std::int64_t lowest_free(const Buffer& buffer, const std::vector<const Buffer*>& placed) {
  std::vector<const Buffer*> others;
  for (const auto* other : placed) {
    if (other->arena == buffer.arena && alive_together(*other, buffer)) others.push_back(other);
  }
  std::sort(others.begin(), others.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  std::int64_t offset = 0;
  for (const auto* other : others) {
    if (offset + buffer.bytes <= other->offset) break;
    offset = std::max(offset, other->offset + in_arena(other->bytes));
  }
  return offset;
}

/// For how many actions a buffer is needed.
std::int64_t live_length(const Buffer& buffer) {
  std::int64_t length = 0;
  for (const auto& range : buffer.live) length += range.last - range.first + 1;
  return length;
}

struct Placement {
  std::vector<std::int64_t> offsets;  ///< per buffer
  ArenaBytes arena_bytes = {};

  std::int64_t total_bytes() const { return arena_bytes[0] + arena_bytes[1]; }
};

/// Persistent buffers in their order, then those of the largest weight first.
template <class Weight>
Placement place_by(Program& program, const Weight& weight) {
  std::vector<std::size_t> order(program.buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto &x = program.buffers[a], &y = program.buffers[b];
    if (x.persistent != y.persistent) return x.persistent;
    return !x.persistent && weight(x) > weight(y);
  });
  Placement placement{std::vector<std::int64_t>(program.buffers.size())};
  std::vector<const Buffer*> placed;
  for (const auto index : order) {
    auto& buffer = program.buffers[index];
    auto& end = placement.arena_bytes[static_cast<std::size_t>(buffer.arena)];
    buffer.offset = placement.offsets[index] = buffer.persistent ? end : lowest_free(buffer, placed);
    end = std::max(end, buffer.offset + in_arena(buffer.bytes));
    placed.push_back(&buffer);
  }
  return placement;
}

}  // namespace

std::int64_t in_arena(std::int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

void place(Program& program) {
  find_live_ranges(program);
  const Placement by_size = place_by(program, [](const Buffer& b) { return static_cast<double>(b.bytes); });
  const Placement by_area = place_by(program, [](const Buffer& b) {
    return static_cast<double>(b.bytes) * static_cast<double>(live_length(b));
  });
  const Placement& best = by_area.total_bytes() < by_size.total_bytes() ? by_area : by_size;
  program.arena_bytes = best.arena_bytes;
  for (std::size_t i = 0; i < program.buffers.size(); ++i) program.buffers[i].offset = best.offsets[i];
}

}  // namespace llampi::fsdp
