// SPDX-License-Identifier: Apache-2.0
// One training step, or one forward pass, as data: a list of actions and the buffers that they work on.
//
// The list is the same on every rank. Every action carries its operands: which buffers it reads and writes.
// The operands tell what an action needs and how long a buffer is needed; no other code derives this
// again. `compile_model()` (compiled_model.hpp) makes programs, `place()` (placement.hpp) sets the offsets of buffers,
// Engine (engine.hpp) runs it, `format_actions()` (dump.hpp) prints it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "llampi/core/tensor.hpp"
#include "llampi/device/device.hpp"
#include "llampi/fsdp/unit.hpp"
#include "llampi/model/model.hpp"

namespace llampi::fsdp {

/// A kind of operation. The set is open: to add one, add a constant, which the builder puts into actions,
/// and a handler in the runtime. Two are the same if their names are.
class Op {
 public:
  /// @param name a literal
  constexpr explicit Op(const char* name) : name_(name) {}
  constexpr const char* name() const { return name_; }
  friend bool operator==(Op a, Op b) { return a.name_ == b.name_ || std::strcmp(a.name_, b.name_) == 0; }
  friend bool operator<(Op a, Op b) { return std::strcmp(a.name_, b.name_) < 0; }

  static const Op h2d;          ///< from host memory to the device: see CopyPayload
  static const Op d2h;          ///< from the device to host memory
  static const Op unshard;      ///< all-gather of a unit's parameters over the shard group
  static const Op cast_params;  ///< a unit's parameters to the dtype that is computed with
  static const Op
      fp8_maxima;  ///< largest magnitudes of what this rank holds of all weights that are gathered in 8 bits
  static const Op all_reduce_maxima;  ///< of the whole weights, over the shard group
  static const Op fp8_scales;         ///< of all these weights
  static const Op fp8_cast;           ///< a unit's shard to 8 bits
  static const Op transpose;          ///< the weights of a layer in 8 bits, for its backward
  static const Op forward;            ///< of a layer
  static const Op recompute;          ///< activation checkpointing: a layer's forward pass again
  static const Op backward;           ///< of a layer; of the last layer forward and backward at once
  static const Op reshard;            ///< a unit's unsharded parameters are freed
  static const Op cast_grads;         ///< a unit's gradient to the dtype that is reduced in
  static const Op reduce;             ///< reduce-scatter of a unit's gradient over the shard group
  static const Op all_reduce;  ///< over the replicate group: of the sharded gradient in place, or, where a
                               ///< unit has one shard, of the unsharded gradient
  static const Op reduce_scatter;  ///< likewise, where each replica updates a part of the shard: to that part
  static const Op
      all_gather;       ///< over the replicate group, in place: of the parts of a shard that were updated
  static const Op add;  ///< a partial sum of a unit's gradients to another: see SumOrder::tree
  static const Op sum_squares;         ///< of a unit's sharded gradient, once it is complete
  static const Op all_reduce_squares;  ///< their sum, over ranks that hold other parts of the gradient
  static const Op norm;                ///< global gradient norm and clip coefficient
  static const Op update;              ///< optimizer on a unit's shard; on Stream::host by the host

 private:
  const char* name_;
};
inline constexpr Op Op::h2d{"h2d"}, Op::d2h{"d2h"}, Op::unshard{"unshard"}, Op::cast_params{"cast_params"},
    Op::fp8_maxima{"fp8_maxima"}, Op::all_reduce_maxima{"all_reduce_maxima"}, Op::fp8_scales{"fp8_scales"},
    Op::fp8_cast{"fp8_cast"}, Op::transpose{"transpose"}, Op::forward{"forward"}, Op::recompute{"recompute"},
    Op::backward{"backward"}, Op::reshard{"reshard"}, Op::cast_grads{"cast_grads"}, Op::reduce{"reduce"},
    Op::all_reduce{"all_reduce"}, Op::reduce_scatter{"reduce_scatter"}, Op::all_gather{"all_gather"},
    Op::add{"add"}, Op::sum_squares{"sum_squares"}, Op::all_reduce_squares{"all_reduce_squares"},
    Op::norm{"norm"}, Op::update{"update"};
inline const char* to_string(Op op) { return op.name(); }

/// What a copy between host and device carries.
enum class CopyPayload : std::uint8_t {
  none,
  inputs,     ///< h2d: the micro-batch
  shard,      ///< h2d: a unit's parameter shard, to its place in the unsharded parameters
  new_shard,  ///< h2d: a unit's parameter shard that the host has updated
  state,      ///< h2d and d2h: what a unit has of an optimizer's state in host memory
  gradient,   ///< d2h: a unit's sharded gradient
  scalars,    ///< d2h: those of the step
  residual,   ///< d2h and h2d: a layer's output, from the forward to the backward pass
  saved,      ///< likewise: what a layer saves for its backward pass (Checkpointing::offload)
};
const char* to_string(CopyPayload payload);

/// The ranks that take part in an action: this one alone, those among which units are sharded, or those that
/// hold the same shard.
enum class Ranks : std::uint8_t { self, shard_group, replicate_group };
const char* to_string(Ranks ranks);

/// A unit has unsharded parameters of its own for each pass, so that the two can be placed independently.
enum class Pass : std::uint8_t { forward, backward };

// ---- buffers ----

/// One per kind of memory. That of the device is allocated by `comm`, since much of it travels; one arena for
/// what travels and what does not, because the two need most at different times.
enum class Arena : std::uint8_t { device, host };
inline constexpr int kArenas = 2;
const char* to_string(Arena arena);
using ArenaBytes = std::array<std::int64_t, kArenas>;
constexpr std::int64_t total(const ArenaBytes& bytes) { return bytes[0] + bytes[1]; }

/// What memory is spent on, in a report. `parameters`: shards and unsharded copies; `optimizer`: masters of
/// their own and moments; `activations`: what lives between layers, with its gradient; `other`: workspaces,
/// inputs, tables.
enum class Category : std::uint8_t { parameters, gradients, optimizer, activations, other };
inline constexpr int kCategories = 5;
const char* to_string(Category category);

/// What a buffer is for. An open set, like Op.
class Purpose {
 public:
  /// @param name a literal
  constexpr Purpose(const char* name, Category category) : name_(name), category_(category) {}
  constexpr const char* name() const { return name_; }
  constexpr Category category() const { return category_; }
  friend bool operator==(Purpose a, Purpose b) {
    return a.name_ == b.name_ || std::strcmp(a.name_, b.name_) == 0;
  }

  // For the whole run.
  static const Purpose parameter_shard;  ///< of a unit, in the dtype that is gathered
  static const Purpose int8_shard;       ///< of a unit in int8_blocks
  static const Purpose master;           ///< as parameter_shard; where there is none, the shard is the master
  static const Purpose exp_avg, exp_avg_sq;
  static const Purpose constant;  ///< a table of the model
  static const Purpose kv_cache;  ///< of a layer, in generation
  static const Purpose step_scalars;
  static const Purpose fp8_maxima;  ///< int32: of each weight in 8 bits, or each of its blocks
  static const Purpose fp8_scales;  ///< float32: likewise, as op::Fp8Product takes them
  static const Purpose
      norm_scalars;  ///< int32: a device::SumOfSquares, then the largest magnitude of each unit
  static const Purpose shared_workspace;  ///< of the device's operations
  static const Purpose inputs;            ///< a micro-batch, as HostBatch
  static const Purpose logits;
  static const Purpose host_scalars;  ///< step_scalars, for the host
  static const Purpose snapshot;      ///< state of a unit that is being saved
  static const Purpose host_inputs;   ///< a micro-batch before it travels (OperationSizes::stages_inputs())
  // For a part of a step.
  static const Purpose fp8_shard;           ///< of a unit, as it is gathered
  static const Purpose transposed_params;   ///< weights of a layer in 8 bits
  static const Purpose unsharded_params;    ///< of a unit, in the dtype that is gathered
  static const Purpose cast_params;         ///< likewise, in the dtype that is computed with
  static const Purpose reduce_buffer;       ///< a unit's gradient in the dtype that is reduced in
  static const Purpose unsharded_gradient;  ///< of a unit, before its reduction
  static const Purpose sharded_gradient;
  static const Purpose activation;         ///< output of a layer
  static const Purpose host_activation;    ///< likewise, between its forward and backward uses
  static const Purpose residual_gradient;  ///< of the residual stream
  static const Purpose saved;              ///< by a layer's forward for its backward
  static const Purpose host_saved;         ///< likewise, in between
  static const Purpose forward_scratch, backward_scratch;
  static const Purpose collective_workspace;
  static const Purpose streamed_state;  ///< of a unit's optimizer, on its way through the device
  static const Purpose host_gradient;   ///< sharded gradient of a unit, for the host
  static const Purpose host_shard;      ///< new parameter shard of a unit, from the host

 private:
  const char* name_;
  Category category_;
};
inline constexpr Purpose Purpose::parameter_shard{"parameter shard", Category::parameters},
    Purpose::int8_shard{"int8 parameter shard", Category::parameters},
    Purpose::master{"master parameters", Category::optimizer},
    Purpose::exp_avg{"exp_avg", Category::optimizer}, Purpose::exp_avg_sq{"exp_avg_sq", Category::optimizer},
    Purpose::constant{"constant table", Category::other}, Purpose::kv_cache{"KV cache", Category::other},
    Purpose::step_scalars{"step scalars", Category::other},
    Purpose::fp8_maxima{"FP8 maxima", Category::other}, Purpose::fp8_scales{"FP8 scales", Category::other},
    Purpose::norm_scalars{"norm scalars", Category::other},
    Purpose::shared_workspace{"shared workspace", Category::other},
    Purpose::inputs{"inputs", Category::other}, Purpose::logits{"logits", Category::other},
    Purpose::host_scalars{"scalars on the host", Category::other},
    Purpose::snapshot{"state being saved", Category::other},
    Purpose::host_inputs{"inputs on the host", Category::other},
    Purpose::fp8_shard{"FP8 parameter shard", Category::parameters},
    Purpose::transposed_params{"transposed parameters", Category::parameters},
    Purpose::unsharded_params{"unsharded parameters", Category::parameters},
    Purpose::cast_params{"cast parameters", Category::parameters},
    Purpose::reduce_buffer{"reduce buffer", Category::gradients},
    Purpose::unsharded_gradient{"unsharded gradient", Category::gradients},
    Purpose::sharded_gradient{"sharded gradient", Category::gradients},
    Purpose::activation{"activation", Category::activations},
    Purpose::host_activation{"activation on the host", Category::activations},
    Purpose::residual_gradient{"residual gradient", Category::activations},
    Purpose::saved{"saved activation", Category::activations},
    Purpose::host_saved{"saved activation on the host", Category::activations},
    Purpose::forward_scratch{"forward scratch", Category::other},
    Purpose::backward_scratch{"backward scratch", Category::other},
    Purpose::collective_workspace{"collective workspace", Category::other},
    Purpose::streamed_state{"streamed state", Category::optimizer},
    Purpose::host_gradient{"gradient on the host", Category::gradients},
    Purpose::host_shard{"new shard on the host", Category::parameters};
inline const char* to_string(Purpose purpose) { return purpose.name(); }

/// A stretch of the list during which a buffer holds something: actions [first, last]. The last action that touches it may be
/// before `last`, where the end of an asynchronous action is only known later.
struct LiveRange {
  int first = 0;
  int last = 0;

  bool operator==(const LiveRange&) const = default;
};

/// [rows, cols] of one dtype in one arena.
struct Buffer {
  Purpose purpose;
  std::string name = {};  ///< of what: "model.layers.0", "model.layers.0.mlp.gate_up"; may be empty
  Arena arena = Arena::device;
  DType dtype = DType::float32;
  std::int64_t rows = 1;
  std::int64_t cols = 0;
  std::int64_t bytes = 0;
  bool persistent = false;           ///< for the whole run; else its memory is shared
  std::vector<LiveRange> live = {};  ///< of a buffer that is not persistent: in order, disjoint; by place()
  std::int64_t offset = 0;           ///< in the arena; by place()

  std::int64_t elements() const { return rows * cols; }
};

/// Index into Program::buffers.
enum class BufferId : std::int32_t { none = -1 };

// ---- actions ----

/// What happens to an operand. An action that writes without reading leaves nothing of what the operand held.
enum class Access : std::uint8_t {
  read,
  write,
  both,
  reserve,  ///< nothing yet: its memory is taken from here on
};
constexpr bool reads(Access access) { return access == Access::read || access == Access::both; }
constexpr bool writes(Access access) { return access == Access::write || access == Access::both; }

/// As what an operation takes an operand. Operands of one slot stand side by side.
enum class Slot : std::uint8_t {
  input,   ///< of copies, casts, collectives; of a layer the output of the one before it
  output,  ///< as many as inputs, where there are several
  workspace,
  scalars,            ///< StepScalars
  batch,              ///< the micro-batch
  residual_gradient,  ///< of a layer; those that follow are in the order of its spec
  parameter,          ///< none: not read
  transposed,         ///< of the weights in 8 bits, in the order of the spec
  fp8_scales,         ///< likewise; of fp8_scales all
  fp8_maxima,
  parameter_gradient,  ///< none: frozen. `write` overwrites, `both` adds
  saved,
  scratch,
  kv_cache,
  constant,  ///< the model's
  logits,
  gradient,  ///< sharded
  master,
  exp_avg,
  exp_avg_sq,
  norm_scalars,
  reserved,  ///< what a later action needs
};
const char* to_string(Slot slot);

/// What belongs to this rank of a buffer: its shard of a unit's flat buffer, or of a shard the part that it updates.
enum class Own : std::uint8_t { none, shard, replica_part };

/// A part of a buffer: all of it, `rows` x `cols` from an element on, or what belongs to this rank of equal parts.
struct Part {
  std::int64_t offset = 0;
  std::int64_t rows = 0;  ///< 0: all
  std::int64_t cols = 0;
  Own own = Own::none;

  bool whole() const { return rows == 0 && own == Own::none; }
  bool operator==(const Part&) const = default;
};

struct Operand {
  BufferId buffer = BufferId::none;
  Slot slot = Slot::input;
  Access access = Access::read;
  Part part = {};

  bool operator==(const Operand&) const = default;
};

struct Action {
  Op op;
  device::Stream stream = device::Stream::compute;
  int layer = -1;
  int unit = -1;
  int micro_batch = -1;
  CopyPayload payload = CopyPayload::none;
  Ranks ranks = Ranks::self;
  std::optional<Pass> pass = {};  ///< where unsharded parameters are made or freed: which copy
  bool recomputes = false;        ///< backward: writes what BufferSpec::recomputed marks once more
  /// The first computation of a later micro-batch: before it, a step can be given up and begun again.
  bool may_abort_before = false;
  std::vector<Operand> operands = {};
  std::vector<int> waits = {};  ///< actions of other streams that must be complete before this one starts
  /// Between ranks or memories: of the whole flat buffer, or of what is copied.
  std::int64_t bytes = 0;

  /// The first operand of this slot; nullptr if there is none.
  const Operand* find(Slot slot) const;
  bool operator==(const Action&) const = default;
};

/// Where a unit's state is kept. With Unit::state_parts, of moments and a master of its own this rank's part.
struct UnitState {
  BufferId shard = BufferId::none;
  BufferId master = BufferId::none;  ///< the shard, where it has none of its own
  BufferId exp_avg = BufferId::none, exp_avg_sq = BufferId::none;  ///< none: frozen, or not training
  /// Copies of the last three that are being saved; none without StepOptions::snapshot.
  BufferId saved_master = BufferId::none, saved_exp_avg = BufferId::none, saved_exp_avg_sq = BufferId::none;

  bool has_own_master() const { return master != shard; }
};

/// Buffers for the whole run. They are the same, in the same places, in all programs of one model.
struct PersistentBuffers {
  std::vector<UnitState> units;
  std::vector<BufferId> constants;              ///< of the model
  std::vector<std::vector<BufferId>> kv_cache;  ///< per layer
  BufferId step_scalars = BufferId::none, norm_scalars = BufferId::none, logits = BufferId::none;
  BufferId fp8_maxima = BufferId::none, fp8_scales = BufferId::none;  ///< none: no weights in 8 bits
  BufferId shared_workspace = BufferId::none, host_scalars = BufferId::none;
  std::vector<BufferId> inputs, host_inputs;  ///< per micro-batch
};

struct Program {
  std::vector<Action> actions;
  std::vector<Buffer> buffers;
  PersistentBuffers persistent;
  ArenaBytes arena_bytes = {};  ///< what the buffers take; by place()

  const Buffer& operator[](BufferId id) const { return buffers.at(static_cast<std::size_t>(id)); }
  Buffer& operator[](BufferId id) { return buffers.at(static_cast<std::size_t>(id)); }
  BufferId add(Buffer buffer);
  int size() const { return static_cast<int>(actions.size()); }
  bool empty() const { return actions.empty(); }
};

/// Elements [first, second) of the buffer that `part` may mean, on any rank.
std::pair<std::int64_t, std::int64_t> extent(const Buffer& buffer, const Part& part);

/// True if `earlier` is complete when `later` starts, by the order of streams and the waits of the list.
/// (Answers for all pairs with one precomputation.)
class HappensBefore {
 public:
  explicit HappensBefore(const std::vector<Action>& actions);
  bool operator()(int earlier, int later) const {
    return known_[static_cast<std::size_t>(later)][streams_[earlier].index()] >= earlier;
  }

 private:
  /// Per action and stream: the last action known to be complete before it.
  std::vector<std::array<int, device::kStreams>> known_;
  std::vector<device::Stream> streams_;
};

}  // namespace llampi::fsdp
