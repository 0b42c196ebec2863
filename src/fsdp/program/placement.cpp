// SPDX-License-Identifier: Apache-2.0
// Where buffers lie, given when they hold something.
#include <algorithm>
#include <array>
#include <bitset>
#include <numeric>
#include <vector>

#include "llampi/core/integers.hpp"
#include "llampi/fsdp/placement.hpp"

namespace llampi::fsdp {
namespace {

constexpr std::int64_t kBufferAlignment = 256;

/// In which of equal parts of the list a buffer holds something.
using LiveParts = std::bitset<256>;

LiveParts live_parts(const Buffer& buffer, std::size_t actions) {
  LiveParts parts;
  const auto part_of = [&](int action) { return static_cast<std::size_t>(action) * parts.size() / actions; };
  for (const auto& range : buffer.live) {
    for (std::size_t part = part_of(range.first); part <= part_of(range.last); ++part) parts.set(part);
  }
  return parts;
}

/// Of buffers that are not persistent.
bool alive_together(const Buffer& a, const Buffer& b) {
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

/// Buffers that are not persistent, with the offsets they have in one arena.
class PlacedBuffers {
 public:
  /// The lowest offset, `start` or higher, at which `buffer` meets none of them.
  std::int64_t lowest_free(const Buffer& buffer, const LiveParts& parts, std::int64_t start) const {
    std::int64_t offset = start;
    for (const auto& other : by_offset_) {
      if (offset + buffer.bytes <= other.begin) break;  // and so it is with all that follow
      const bool may_meet = other.end > offset && (other.parts & parts).any();
      if (may_meet && alive_together(*other.buffer, buffer)) offset = other.end;
    }
    return offset;
  }
  void add(const Buffer& buffer, const LiveParts& parts) {
    const Placed placed{buffer.offset, buffer.offset + in_arena(buffer.bytes), parts, &buffer};
    by_offset_.insert(std::ranges::upper_bound(by_offset_, placed.begin, {}, &Placed::begin), placed);
  }

 private:
  struct Placed {
    std::int64_t begin, end;
    LiveParts parts;
    const Buffer* buffer;
  };
  std::vector<Placed> by_offset_;
};

/// For how many actions a buffer is needed.
std::int64_t live_length(const Buffer& buffer) {
  std::int64_t length = 0;
  for (const auto& range : buffer.live) length += range.last - range.first + 1;
  return length;
}

struct Placement {
  std::vector<std::int64_t> offsets;  ///< per buffer
  ArenaBytes arena_bytes = {};
};

/// Persistent buffers in their order, then those of the largest weight first.
template <class Weight>
Placement place_by(Program& program, const std::vector<LiveParts>& parts, const Weight& weight) {
  std::vector<std::size_t> order(program.buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto &x = program.buffers[a], &y = program.buffers[b];
    if (x.persistent != y.persistent) return x.persistent;
    return !x.persistent && weight(x) > weight(y);
  });
  Placement placement{std::vector<std::int64_t>(program.buffers.size())};
  std::array<PlacedBuffers, kArenas> placed;
  ArenaBytes persistent_end{};
  for (const auto index : order) {
    auto& buffer = program.buffers[index];
    const auto arena = static_cast<std::size_t>(buffer.arena);
    auto& end = placement.arena_bytes[arena];
    if (buffer.persistent) persistent_end[arena] = end + in_arena(buffer.bytes);
    buffer.offset = placement.offsets[index] =
        buffer.persistent ? end : placed[arena].lowest_free(buffer, parts[index], persistent_end[arena]);
    end = std::max(end, buffer.offset + in_arena(buffer.bytes));
    if (!buffer.persistent) placed[arena].add(buffer, parts[index]);
  }
  return placement;
}

}  // namespace

std::int64_t in_arena(std::int64_t bytes) { return round_up(bytes, kBufferAlignment); }

void place(Program& program) {
  find_live_ranges(program);
  std::vector<LiveParts> parts;
  for (const Buffer& buffer : program.buffers) parts.push_back(live_parts(buffer, program.actions.size()));
  const Placement by_size =
      place_by(program, parts, [](const Buffer& b) { return static_cast<double>(b.bytes); });
  const Placement by_area = place_by(program, parts, [](const Buffer& b) {
    return static_cast<double>(b.bytes) * static_cast<double>(live_length(b));
  });
  const Placement& best = total(by_area.arena_bytes) < total(by_size.arena_bytes) ? by_area : by_size;
  program.arena_bytes = best.arena_bytes;
  for (std::size_t i = 0; i < program.buffers.size(); ++i) program.buffers[i].offset = best.offsets[i];
}

}  // namespace llampi::fsdp
