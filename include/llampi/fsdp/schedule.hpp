// One training step, or one forward pass, compiled into one flat list of actions: the same list on every
// rank.
//
// The engine does nothing that is not in the list; prefetch, limits, strategies and accumulation are
// different lists. Tests assert properties of the list without running it; the memory plan and the trace are
// readings of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llampi/device/device.hpp"
#include "llampi/fsdp/unit.hpp"
#include "llampi/model/model.hpp"

namespace llampi {

enum class Op : std::uint8_t {
  copy_in,   ///< the micro-batch goes to the device
  unshard,   ///< all-gather of a unit's parameters over the shard group
  forward,   ///< of a stage
  backward,  ///< of a stage; of the last stage forward and backward at once
  reshard,   ///< a unit's gathered parameters are given up
  reduce,    ///< reduce-scatter of a unit's gradient over the shard group, added to the sharded gradient
  replica_reduce,  ///< all-reduce of a unit's gradient over the replicas, added to the sharded gradient
  norm,            ///< global gradient norm and clip coefficient
  update,          ///< optimizer on a unit's shard
};
const char* to_string(Op op);

/// Where a unit's gathered parameters or whole gradient lie: an index into MemoryPlan's tables. A unit has
/// one gathered copy per pass, so that the two can be placed independently.
enum class Pass : std::uint8_t { forward, backward };

struct Action {
  Op op = Op::forward;
  Stream stream = Stream::compute;
  int stage = -1;
  int unit = -1;
  int micro_batch = -1;
  /// unshard, reshard: which gathered copy. forward, backward: which copy each parameter of the stage is read
  /// from (`copies`).
  Pass pass = Pass::forward;
  std::vector<Pass> copies = {};  ///< forward, backward: per parameter of the stage
  std::vector<Accumulate> accumulate =
      {};                       ///< backward: per parameter of the stage; reduce, update: one entry
  std::vector<int> waits = {};  ///< actions of other streams that must be complete before this one starts
  std::int64_t elements = 0;    ///< that a collective moves: of the whole flat buffer

  bool operator==(const Action&) const = default;
};

enum class Prefetch : std::uint8_t { pre, post, none };

struct ScheduleOptions {
  bool forward_only = false;  ///< evaluation: no loss gradient, no update
  int micro_batches = 1;
  int replicas = 1;                   ///< ranks that hold the same shard
  bool reshard_after_forward = true;  ///< full_shard; false: shard_grad_op
  Prefetch backward_prefetch = Prefetch::pre;
  bool forward_prefetch = true;
  int limit_all_gathers = 2;  ///< units gathered for passing use at one time, at least 1
};

/// Compiles the list. `specs` are those of the stages, in order; the last stage is the loss.
/// A unit of one shard needs no gather: its parameters are read where they are kept.
std::vector<Action> compile(const std::vector<StageSpec>& specs, const std::vector<Unit>& units,
                            const ScheduleOptions& options);

/// The unit of each parameter.
std::vector<int> unit_of_parameter(const std::vector<Unit>& units, std::size_t parameters);

/// One line per action, for tests and for people.
std::string to_string(const Action& action, const std::vector<StageSpec>& specs,
                      const std::vector<Unit>& units);

/// True if `earlier` is complete when `later` starts, by the order of streams and the waits of the list.
/// (Answers for all pairs with one precomputation.)
class HappensBefore {
 public:
  explicit HappensBefore(const std::vector<Action>& actions);
  bool operator()(int earlier, int later) const;

 private:
  std::vector<std::vector<int>>
      known_;  ///< per action and stream: the last action known to be complete before it
  std::vector<Stream> streams_;
};

}  // namespace llampi
