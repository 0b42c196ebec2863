#include "llampi/plan/memory_report.hpp"

#include <algorithm>

#include "llampi/core/text.hpp"

namespace llampi {

std::vector<RoleBytes> bytes_by_role(const MemoryPlan& plan) {
  std::vector<RoleBytes> rows;
  for (const auto& buffer : plan.buffers) {
    auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.role == buffer.role; });
    if (row == rows.end()) row = rows.insert(rows.end(), {buffer.role, buffer.persistent()});
    ++row->buffers;
    row->bytes += buffer.bytes;
  }
  return rows;
}

std::string format_plan(const MemoryPlan& plan) {
  std::string text;
  for (const bool persistent : {true, false}) {
    text += persistent ? "kept for the whole run\n" : "for a part of each step, sharing memory\n";
    for (const auto& row : bytes_by_role(plan)) {
      if (row.persistent != persistent) continue;
      text +=
          fmt::format("  {:<22} {:>5} x {:>12}\n", to_string(row.role), row.buffers, format_bytes(row.bytes));
    }
  }
  text += fmt::format("arenas: {} on the device, {} for communication", format_bytes(plan.arena_bytes[0]),
                      format_bytes(plan.arena_bytes[1]));
  return text;
}

}  // namespace llampi
