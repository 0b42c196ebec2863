// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/memory_report.hpp"

#include <algorithm>

#include "llampi/core/text.hpp"

namespace llampi::fsdp {
namespace {

void add(std::vector<PurposeBytes>& rows, const Buffer& buffer) {
  auto row = std::find_if(rows.begin(), rows.end(), [&](const PurposeBytes& r) {
    return r.purpose == buffer.purpose && r.arena == buffer.arena && r.persistent == buffer.persistent;
  });
  if (row == rows.end()) row = rows.insert(row, {buffer.purpose, buffer.arena, buffer.persistent});
  ++row->buffers;
  row->bytes += buffer.bytes;
}

bool alive_at(const Buffer& buffer, int action) {
  return buffer.persistent ||
         std::any_of(buffer.live.begin(), buffer.live.end(),
                     [&](const LiveRange& range) { return range.first <= action && action <= range.last; });
}

}  // namespace

std::vector<PurposeBytes> bytes_by_purpose(const Program& program) {
  std::vector<PurposeBytes> rows;
  for (const auto& buffer : program.buffers) add(rows, buffer);
  return rows;
}

std::vector<PurposeBytes> bytes_alive_at(const Program& program, int action) {
  std::vector<PurposeBytes> rows;
  for (const auto& buffer : program.buffers) {
    if (alive_at(buffer, action)) add(rows, buffer);
  }
  return rows;
}

std::optional<int> peak_action(const Program& program) {
  if (program.empty()) return std::nullopt;
  std::vector<std::int64_t> change(program.actions.size() +
                                   1);  // of the live bytes, at the beginning of each action
  for (const auto& buffer : program.buffers) {
    for (const auto& range : buffer.live) {
      change.at(static_cast<std::size_t>(range.first)) += buffer.bytes;
      change.at(static_cast<std::size_t>(range.last) + 1) -= buffer.bytes;
    }
  }
  int peak = 0;
  std::int64_t live = 0, most = 0;
  for (int i = 0; i < program.size(); ++i) {
    live += change[static_cast<std::size_t>(i)];
    if (live > most) peak = i, most = live;
  }
  return peak;
}

std::string format_memory(const Program& program) {
  std::string text;
  for (const bool persistent : {true, false}) {
    text += persistent
                ? "kept for the whole run\n"
                : "temporary in a step: sizes of all buffers added up, though most share the same memory\n";
    for (const auto& row : bytes_by_purpose(program)) {
      if (row.persistent != persistent) continue;
      text += fmt::format("  {:<22} {:>12} in {}{}\n", to_string(row.purpose), format_bytes(row.bytes),
                          count(row.buffers, "buffer"), row.arena == Arena::host ? " of host memory" : "");
    }
  }
  const auto bytes_of = [&](Arena arena) { return program.arena_bytes[static_cast<std::size_t>(arena)]; };
  text += fmt::format("arena: {} on the device", format_bytes(bytes_of(Arena::device)));
  if (bytes_of(Arena::host) > 0)
    text += fmt::format(", {} in host memory", format_bytes(bytes_of(Arena::host)));
  return text;
}

}  // namespace llampi::fsdp
