#include "llampi/fsdp/memory_report.hpp"

#include <algorithm>
#include <tuple>

#include "llampi/core/text.hpp"

namespace llampi::fsdp {
namespace {

void add(std::vector<RoleBytes>& rows, const Buffer& buffer) {
  const auto key = std::make_tuple(buffer.role, buffer.arena, buffer.persistent());
  auto row = std::find_if(rows.begin(), rows.end(),
                          [&](const auto& r) { return std::tie(r.role, r.arena, r.persistent) == key; });
  if (row == rows.end()) row = rows.insert(row, {buffer.role, buffer.arena, buffer.persistent()});
  ++row->buffers;
  row->bytes += buffer.bytes;
}

bool alive_at(const Buffer& buffer, int action) {
  return buffer.persistent() || std::any_of(buffer.lives.begin(), buffer.lives.end(), [&](const Life& life) {
           return life.first <= action && action <= life.last;
         });
}

}  // namespace

std::vector<RoleBytes> bytes_by_role(const MemoryPlan& plan) {
  std::vector<RoleBytes> rows;
  for (const auto& buffer : plan.buffers) add(rows, buffer);
  return rows;
}

std::vector<RoleBytes> bytes_alive_at(const MemoryPlan& plan, int action) {
  std::vector<RoleBytes> rows;
  for (const auto& buffer : plan.buffers) {
    if (alive_at(buffer, action)) add(rows, buffer);
  }
  return rows;
}

std::optional<int> busiest_action(const MemoryPlan& plan, std::size_t actions) {
  if (actions == 0) return std::nullopt;
  std::vector<std::int64_t> change(actions + 1);  // of the live bytes, at the beginning of each action
  for (const auto& buffer : plan.buffers) {
    for (const auto& life : buffer.lives) {
      change.at(life.first) += buffer.bytes;
      change.at(life.last + 1) -= buffer.bytes;
    }
  }
  int busiest = 0;
  std::int64_t live = 0, most = 0;
  for (int i = 0; i < static_cast<int>(actions); ++i) {
    live += change[i];
    if (live > most) busiest = i, most = live;
  }
  return busiest;
}

std::string format_plan(const MemoryPlan& plan) {
  std::string text;
  for (const bool persistent : {true, false}) {
    text += persistent ? "kept for the whole run\n" : "for a part of each step, sharing memory\n";
    for (const auto& row : bytes_by_role(plan)) {
      if (row.persistent != persistent) continue;
      text += fmt::format("  {:<22} {:>5} x {:>12}{}\n", to_string(row.role), row.buffers,
                          format_bytes(row.bytes), row.arena == Arena::host ? "  in host memory" : "");
    }
  }
  const auto bytes_of = [&](Arena arena) { return plan.arena_bytes[static_cast<int>(arena)]; };
  text += fmt::format("arena: {} on the device", format_bytes(bytes_of(Arena::device)));
  if (bytes_of(Arena::host) > 0)
    text += fmt::format(", {} in host memory", format_bytes(bytes_of(Arena::host)));
  return text;
}

}  // namespace llampi::fsdp
