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
#include "llampi/fsdp/storage.hpp"
#include "llampi/fsdp/unit.hpp"
#include "llampi/model/model.hpp"

namespace llampi::fsdp {

enum class Op : std::uint8_t {
  copy_in,    ///< from host memory to the device: see Cargo
  unshard,    ///< all-gather of a unit's parameters over the shard group
  widen,      ///< a unit's parameters from the dtype that is gathered to the one that is computed with
  forward,    ///< of a stage
  recompute,  ///< activation checkpointing: a stage's saved tensors again, before its backward
  backward,   ///< of a stage; of the last stage forward and backward at once
  reshard,    ///< a unit's gathered parameters are given up
  narrow,     ///< a unit's gradient from the dtype that is computed with to the one that is reduced in
  reduce,     ///< reduce-scatter of a unit's gradient over the shard group, added to the sharded gradient
  replica_reduce,  ///< all-reduce over the replicas: of the sharded gradient in place, or, where a unit has
                   ///< one shard, of the whole gradient, added to the sharded one
  norm,            ///< global gradient norm and clip coefficient
  update,          ///< optimizer on a unit's shard; on Stream::host by the host
  copy_out,        ///< from the device to host memory: see Cargo
};
const char* to_string(Op op);

/// What a copy carries.
enum class Cargo : std::uint8_t {
  none,
  inputs,     ///< in: the micro-batch
  shard,      ///< in: a unit's parameter shard, to its place in the gathered copy of `pass`
  new_shard,  ///< in: a unit's parameter shard that the host has updated, to where it is kept
  state,      ///< in and out: what a unit has of an optimizer's state in host memory
  gradient,   ///< out: a unit's sharded gradient
  scalars,    ///< out: those of the step
};
const char* to_string(Cargo cargo);

/// Where a unit's gathered parameters or whole gradient lie: an index into MemoryPlan's tables. A unit has
/// one gathered copy per pass, so that the two can be placed independently.
enum class Pass : std::uint8_t { forward, backward };

struct Action {
  Op op = Op::forward;
  device::Stream stream = device::Stream::compute;
  int stage = -1;
  int unit = -1;
  int micro_batch = -1;
  Cargo cargo = Cargo::none;  ///< copy_in, copy_out
  /// unshard, reshard, copy_in of a shard: which gathered copy. forward, backward: which copy each parameter
  /// of the stage is read from (`copies`).
  Pass pass = Pass::forward;
  std::vector<Pass> copies = {};  ///< forward, backward: per parameter of the stage
  std::vector<device::Accumulate> accumulate =
      {};                       ///< backward: per parameter of the stage; reduce, update: one entry
  std::vector<int> waits = {};  ///< actions of other streams that must be complete before this one starts
  std::int64_t elements = 0;  ///< that a collective or a cast covers: of the whole flat buffer, or of a shard
  /// Collectives: `elements` in the dtype that travels; copies: what is copied.
  std::int64_t bytes = 0;
  bool writes_output = true;  ///< forward, recompute: false where nobody reads the stage's output

  bool operator==(const Action&) const = default;
};

enum class Prefetch : std::uint8_t { pre, post, none };

/// Activation checkpointing (Chen et al., arXiv 1604.06174; selective: Korthikanti et al., arXiv 2205.05198).
enum class Checkpointing : std::uint8_t {
  none,       ///< saved tensors live from forward to backward
  full,       ///< of each block only the input lives; the block runs forward again before its backward
  selective,  ///< saved tensors that are cheap (BufferSpec::cheap) are made again, the dear ones live
};

struct ScheduleOptions {
  bool forward_only = false;  ///< evaluation: no loss gradient, no update
  int micro_batches = 1;
  std::int64_t input_bytes = 0;       ///< of a micro-batch on its way to the device
  int replicas = 1;                   ///< ranks that hold the same shard
  bool reshard_after_forward = true;  ///< full_shard; false: shard_grad_op
  Prefetch backward_prefetch = Prefetch::pre;
  bool forward_prefetch = true;
  int limit_all_gathers = 2;  ///< units gathered for passing use at one time, at least 1
  /// Micro-batches add up in whole gradients, which are reduced once; otherwise each is reduced into the
  /// sharded gradient.
  bool accumulate_unsharded = false;
  Precision precision = {};
  Offload offload = {};
  Checkpointing checkpointing = Checkpointing::none;
  std::vector<int> blocks = {};  ///< per stage, for Checkpointing::full: its block, -1 outside
};

/// Compiles the list. `specs` are those of the stages, in order; the last stage is the loss.
/// A unit of one shard needs no gather: its parameters are read where they are kept, if that is the device.
/// The backward pass ends with the first stage that has a trained parameter.
std::vector<Action> compile(const std::vector<model::StageSpec>& specs, const std::vector<Unit>& units,
                            const ScheduleOptions& options);

/// The unit of each parameter.
std::vector<int> unit_of_parameter(const std::vector<Unit>& units, std::size_t parameters);

/// The module of a stage, or "root".
std::string name_of(const model::StageSpec& stage);

/// One line per action, for tests and for people.
std::string to_string(const Action& action, const std::vector<model::StageSpec>& specs,
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
  std::vector<device::Stream> streams_;
};

}  // namespace llampi::fsdp
