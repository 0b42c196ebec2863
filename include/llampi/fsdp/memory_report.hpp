// The memory plan of one list of actions, added up by role.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llampi/fsdp/memory_plan.hpp"

namespace llampi::fsdp {

/// Bytes of all buffers of one role in one arena. Transient buffers share memory, so their sums exceed what
/// they need of the arena.
struct RoleBytes {
  Role role = Role::inputs;
  Arena arena = Arena::device;
  bool persistent = false;  ///< kept for the whole run
  std::int64_t buffers = 0;
  std::int64_t bytes = 0;
};

/// In the order in which the plan names them.
std::vector<RoleBytes> bytes_by_role(const MemoryPlan& plan);

/// Only what is alive during the action with this index: the persistent ones, and of the others those that
/// then hold something.
std::vector<RoleBytes> bytes_alive_at(const MemoryPlan& plan, int action);

/// The first of `actions` actions during which the transient buffers hold the most bytes, over all arenas;
/// none if there are no actions.
std::optional<int> busiest_action(const MemoryPlan& plan, std::size_t actions);

/// A table, one line per role and the arenas' sizes last.
std::string format_plan(const MemoryPlan& plan);

}  // namespace llampi::fsdp
