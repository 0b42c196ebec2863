// Where everything lies: lifetimes read off the list of actions, placed in one arena per kind of memory.
// The arenas are allocated once; nothing is allocated inside a step.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "llampi/comm/comm.hpp"
#include "llampi/fsdp/schedule.hpp"

namespace llampi::fsdp {

/// One per kind of memory. That of the device is allocated by `comm`, since much of it travels; one arena for
/// what travels and what does not, because the two need most at different times.
enum class Arena : std::uint8_t { device, host };
inline constexpr int kArenas = 2;
const char* to_string(Arena arena);

enum class Role : std::uint8_t {
  parameter_shard,  ///< of unit `owner`, in the dtype that is gathered
  master,           ///< likewise; where there is none, parameter_shard is the master
  exp_avg,
  exp_avg_sq,
  constant,  ///< `item` of the model's tables
  kept,      ///< `item` of stage `owner`, from pass to pass
  step_scalars,
  norm_scalars,      ///< limbs and largest magnitude, then largest magnitudes by unit
  shared_workspace,  ///< of the device's operations
  inputs,            ///< HostBatch of micro-batch `owner`
  logits,
  gathered,             ///< parameters of unit `owner`, of pass `item`
  widened,              ///< likewise in the dtype that is computed with
  travelling_gradient,  ///< of unit `owner`, in the dtype that is reduced in, where that differs
  whole_gradient,       ///< of unit `owner`, before its reduction
  sharded_gradient,     ///< of unit `owner`
  activation,           ///< output of stage `owner`
  residual_gradient,
  saved,  ///< `item` of stage `owner`
  forward_scratch,
  backward_scratch,
  collective_workspace,
  staged,         ///< optimizer state of unit `owner` on its way through the device; `item`: a Staged
  host_gradient,  ///< sharded gradient of unit `owner`, for the host
  host_shard,     ///< new parameter shard of unit `owner`, from the host
  host_scalars,   ///< step_scalars, for the host
  host_inputs,    ///< HostBatch of micro-batch `owner` before it travels (OperationSizes::stages_inputs())
  snapshot,       ///< state of unit `owner` that is being saved; `item`: the role of what it copies
};
const char* to_string(Role role);

enum class Staged : std::uint8_t { master, exp_avg, exp_avg_sq, shard };

/// A stretch of the list during which a buffer holds something: actions [first, last]. `user` is the last
/// action that touches it (it may be before `last`, where the end of a collective is only known later).
struct Life {
  int first = 0;
  int last = 0;
  int user = 0;
};

struct Buffer {
  Role role = Role::inputs;
  int owner = 0;
  int item = 0;
  Arena arena = Arena::device;
  std::int64_t bytes = 0;
  std::vector<Life> lives = {};  ///< in order, disjoint; empty: always
  std::int64_t offset = 0;

  bool persistent() const { return lives.empty(); }
};

struct MemoryPlan {
  std::vector<Buffer> buffers;
  std::map<std::tuple<Role, int, int>, int> index;  ///< of the buffer with (role, owner, item)
  std::int64_t arena_bytes[kArenas] = {};

  /// The buffer with this role. @throws Error if there is none
  const Buffer& find(Role role, int owner = 0, int item = 0) const;
  bool has(Role role, int owner = 0, int item = 0) const;
  std::int64_t total_bytes() const { return arena_bytes[0] + arena_bytes[1]; }
};

/// Those of Role::norm_scalars that do not depend on the units.
inline constexpr std::int64_t kNormScalarBytes = 24;

/// Bytes that a buffer takes of its arena: a multiple of 256.
std::int64_t in_arena(std::int64_t bytes);

struct PlanInput {
  const std::vector<model::StageSpec>& specs;
  const std::vector<Unit>& units;
  const std::vector<model::BufferSpec>& constants;
  model::BatchShape batch;
  Precision precision;
  Offload offload = {};
  std::int64_t shared_workspace = 0;           ///< bytes that the device's operations share
  comm::Backend backend = comm::Backend::mpi;  ///< of the collectives
  int shards = 1;                              ///< ranks of the shard group
  int replicas = 1;                            ///< ranks that hold the same shard
  Checkpointing checkpointing = Checkpointing::none;
  int micro_batches = 1;        ///< room for inputs: the largest number of any list that shares the arena
  bool optimizer_state = true;  ///< moments
  bool stages_inputs = false;   ///< OperationSizes::stages_inputs()
  bool snapshot = false;        ///< room to save the state while training goes on
  std::int64_t vocabulary = 0;
};

/// Persistent buffers come first and lie alike in every plan of equal input, so that the plans of a training
/// step and of an evaluation can share one arena, as large as the larger of the two. The others are placed
/// one after another, each at the lowest offset that is free during all of its lives: the largest first, or
/// those with the largest product of bytes and length of life, whichever takes less.
MemoryPlan place(const std::vector<Action>& actions, const PlanInput& input);

}  // namespace llampi::fsdp
