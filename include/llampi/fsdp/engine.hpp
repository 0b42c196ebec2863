// The interpreter of the list of actions: the only code that calls stages and groups while a model trains.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "llampi/comm/comm.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/fsdp/groups.hpp"
#include "llampi/fsdp/memory_plan.hpp"
#include "llampi/fsdp/schedule.hpp"
#include "llampi/fsdp/unit.hpp"
#include "llampi/fsdp/wrap.hpp"
#include "llampi/health/flight_record.hpp"
#include "llampi/model/model.hpp"
#include "llampi/optim/parameter_groups.hpp"

namespace llampi::fsdp {

struct EngineOptions {
  model::BatchShape batch;  ///< of a micro-batch
  int micro_batches = 1;    ///< per step
  bool training = true;     ///< false: forward only, no moments, no gradients
  Strategy strategy = Strategy::full_shard;
  WrapOptions wrap;
  Prefetch backward_prefetch = Prefetch::pre;
  bool forward_prefetch = true;
  int limit_all_gathers = 2;
  int shard_group_size = 0;  ///< hybrid strategies: ranks per shard group; 0: the ranks of a node
  bool accumulate_unsharded = false;
  Checkpointing checkpointing = Checkpointing::none;
  Precision precision;
  Offload offload;
  bool graph = false;      ///< steps are captured and replayed, where the device can; no bit changes
  bool snapshot = false;   ///< room for snapshot()
  std::uint64_t seed = 0;  ///< of stochastic rounding
  device::AdamWConstants adamw;
  double clip_grad_norm = 0;                  ///< 0: off
  std::vector<optim::ParameterGroup> groups;  ///< one per parameter; training only
};

/// Everything that follows from (model, options, ranks) without a device: units, stages' specs, lists, plans.
struct CompiledModel {
  std::vector<model::StageSpec> specs;
  std::vector<Unit> units;
  std::vector<model::BufferSpec> constants;
  std::vector<Action> step;        ///< empty if not training
  std::vector<Action> evaluation;  ///< one micro-batch, forward only
  MemoryPlan step_plan, evaluation_plan;
  std::array<std::int64_t, kArenas> arena_bytes{};
};
CompiledModel compile_model(const model::Model& model, const EngineOptions& options, const RankGroups& groups,
                            const device::OperationSizes& sizes, comm::Backend backend = comm::Backend::mpi);

struct StepInputs {
  double learning_rate = 0;
  std::int64_t optimizer_step = 1;  ///< updates so far, this one included: the t of the bias corrections
  std::int64_t valid_labels = 0;    ///< of the global batch; at least 1
  double loss_scale = 1;            ///< for float16: gradients are this much larger while they are float16
};

struct StepResult {
  double loss_sum = 0;   ///< of this rank
  double grad_norm = 0;  ///< global, before clipping
  bool dropped = false;  ///< see Engine::ask_before_micro_batches()
};

enum class Moment : std::uint8_t { begin, end };
/// Called when an action is issued and when it is known to be done: for collectives that may be much later,
/// and other actions begin and end in between. `index` is that of the action in the list.
using Observer = std::function<void(const Action& action, int index, Moment moment)>;

/// A piece of a parameter and its optimizer state in this rank's memory, the device's or the host's.
struct StatePiece {
  int parameter = 0;
  std::int64_t begin = 0;  ///< first logical element
  Tensor master;
  Tensor exp_avg, exp_avg_sq;  ///< as long, or empty: frozen, or without optimizer state
};

class Engine {
 public:
  /// Collective. Allocates the arenas; parameters and moments are zero. `model`, the devices and `world` must
  /// outlive it.
  /// @param host computes in host memory (Offload::host_step); `device` itself if that does
  /// @throws UserError if the arenas do not fit
  Engine(const model::Model& model, device::Device& device, device::Device& host, comm::World& world,
         const EngineOptions& options);
  Engine(const model::Model& model, device::Device& device, comm::World& world, const EngineOptions& options)
      : Engine(model, device, device, world, options) {}
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Initial values by Philox, keyed by (seed, name, element): the same for every world size and strategy.
  void initialise(std::uint64_t seed);

  /// One optimizer step over this rank's micro-batches. Collective.
  StepResult step(std::span<const device::HostBatch> micro_batches, const StepInputs& inputs);
  /// Sum of the token losses of one micro-batch of this rank. Collective: every rank calls it equally often.
  double evaluate(const device::HostBatch& batch);
  /// Logits [V] of the token at `row` of the micro-batch, in float64. Collective.
  std::vector<double> logits(const device::HostBatch& batch, std::int64_t row);

  /// What this rank writes into a checkpoint: every element of the model is in exactly one rank's pieces.
  std::vector<StatePiece> pieces_to_save() const;
  /// A copy of that in host memory, which steps leave alone until the next snapshot. A GPU may still be at it
  /// when this returns: steps can follow at once, of which only the update waits for the copies, and whoever
  /// reads them calls wait_for_snapshot() before. Needs EngineOptions::snapshot.
  std::vector<StatePiece> snapshot();
  /// All that this rank holds, with what other ranks hold as well. To be read only.
  std::vector<StatePiece> pieces_held() const;
  /// Until the last snapshot is complete. Any thread may wait, as long as no other snapshot is taken.
  void wait_for_snapshot() const { device_.wait_in_any_thread(snapshot_copied_); }
  /// What this rank must be given: as above, but replicas need everything that they hold.
  /// The caller may write them until the next step or evaluation.
  std::vector<StatePiece> pieces_to_load();

  const CompiledModel& compiled() const { return compiled_; }
  const RankGroups& groups() const { return groups_; }
  const model::Model& model() const { return model_; }
  const EngineOptions& options() const { return options_; }
  void observe(Observer observer) { observer_ = std::move(observer); }
  /// Asked in each step before each micro-batch but the first, unless the step is replayed; all ranks must
  /// answer alike. True: the step is dropped, and parameters and moments are as if it had not begun.
  void ask_before_micro_batches(std::function<bool()> whether_to_drop) {
    whether_to_drop_ = std::move(whether_to_drop);
  }
  /// Where the engine notes what it does, from now on; it must live as long. Without this call the engine has
  /// one of its own.
  void keep_record(health::FlightRecord& record);
  health::FlightRecord& record() { return *record_; }
  /// After a step whose gradient norm is not finite: the first unit, in the order of the units, of whose
  /// gradient this rank's shard holds a number that is not finite; -1: none.
  int unit_of_bad_gradient();
  /// Steps that were replays of a captured one.
  std::int64_t replays() const { return replays_; }
  /// Per arena, the end of the farthest memory that was handed to a stage, a group or the device so far: what
  /// the plan says is needed, if it is right.
  std::array<std::int64_t, kArenas> high_water() const { return high_water_; }
  /// For tests: overwrites everything that is not persistent with bytes of NaN.
  void poison_transients();

 private:
  /// The views of one forward or backward action.
  struct Bound {
    std::vector<Tensor> parameters, gradients, saved, scratch, kept;
    Tensor input, output;
  };
  struct Execution {  ///< a list, ready to run
    const std::vector<Action>* actions;
    const MemoryPlan* plan;
    std::vector<Bound> bound;
    std::vector<bool> awaited;       ///< some action of another stream waits for it
    std::vector<std::string> names;  ///< of actions, for profilers
    bool on_host = false;            ///< the host has a part in it
  };
  /// A micro-batch where it lies in host memory.
  struct Input {
    std::span<const std::int32_t> values;
    std::int64_t segments;
    std::int64_t past;
  };
  struct CapturedStep {
    std::int64_t segments;  ///< that operations were issued for
    device::Graph graph;
  };
  enum class Issue : bool { run, capture };
  void check_that_it_fits(comm::World& world) const;
  struct Running;  ///< the state of one run of a list

  Execution bind(const std::vector<Action>& actions, const MemoryPlan& plan) const;
  Bound bind_stage(const Action& action, const MemoryPlan& plan) const;
  std::vector<Input> place_inputs(const MemoryPlan& plan, std::span<const device::HostBatch> micro_batches,
                                  std::int64_t segments);
  void run_step(std::span<const device::HostBatch> micro_batches);
  void replay(std::span<const Input> inputs, std::int64_t segments);
  device::Graph capture(std::span<const Input> inputs);
  void run(const Execution& execution, std::span<const Input> inputs, std::int64_t logits_row);
  void issue_all(const Execution& execution, std::span<const Input> inputs, std::int64_t logits_row,
                 Issue how);
  void wait_for_device(device::Stream stream);
  void issue(Running& running, int index);
  bool drops_before(const Action& action, Issue how) const;
  void compute(Running& running, int index);
  void collective(Running& running, int index);
  void widen(Running& running, const Action& action);
  void copy_in(Running& running, const Action& action);
  void copy_out(Running& running, const Action& action);
  void compute_norm(Running& running);
  health::FlightOperation noted(const Action& action) const;
  void update(const Running& running, const Action& action);
  void wait_for(Running& running, int index, device::Stream stream);

  /// One tensor of a unit's state: where it is kept, where it stands on the device during the update, and
  /// whether it is read by it.
  struct StateTensor {
    Tensor kept, staged;
    bool read;
  };
  std::vector<StateTensor> state_on_its_way(const MemoryPlan& plan, int unit) const;
  Tensor staged(const MemoryPlan& plan, Staged item, DType dtype, int unit) const;

  Tensor view(const MemoryPlan& plan, DType dtype, std::int64_t rows, std::int64_t cols, Role role,
              int owner = 0, int item = 0) const;
  Tensor flat(const MemoryPlan& plan, DType dtype, Role role, int unit, int item = 0) const;
  Tensor shard_of(Role role, int unit) const;
  Tensor whole_gradient(const MemoryPlan& plan, int unit) const;
  Tensor parameters_of(const MemoryPlan& plan, int unit, Pass pass) const;
  Tensor gradient_shard(const MemoryPlan& plan, int unit) const;
  Tensor scalars_view() const;
  Tensor unit_maxima(const MemoryPlan& plan) const;
  Tensor place_in(Tensor whole) const;
  struct ShardPart {  ///< elements [begin, end)
    std::int64_t begin, end;
  };
  ShardPart saved_part(int unit) const;
  using StateOf = std::function<Tensor(Role role, int unit, ShardPart part)>;
  std::vector<StatePiece> pieces(bool divide_replicas, const StateOf& state_of) const;
  Tensor state_in_place(Role role, int unit, ShardPart part) const;
  Tensor snapshot_of(Role role, int unit, ShardPart part) const;
  void refresh_shards();
  void write_scalars(const device::StepScalars& scalars);
  device::StepScalars read_scalars();

  const model::Model& model_;
  device::Device& device_;
  device::Device& host_;  ///< computes in host memory
  comm::World& world_;
  EngineOptions options_;
  StatePlacement placement_;
  RankGroups groups_;
  std::unique_ptr<comm::Group> shards_;    ///< ranks among which a unit is sharded
  std::unique_ptr<comm::Group> replicas_;  ///< ranks that hold the same shard
  CompiledModel compiled_;
  std::array<device::Memory, kArenas> arenas_;
  mutable std::array<std::int64_t, kArenas> high_water_{};
  std::vector<int> unit_of_;
  std::vector<std::vector<device::UpdateRange>>
      ranges_;  ///< per unit: the real elements of this rank's shard
  std::vector<Tensor> constants_;
  bool stale_ = true;                       ///< parameter shards may not follow their masters
  device::StepScalars* scalars_ = nullptr;  ///< device memory
  Execution step_, evaluation_;
  Observer observer_;
  std::function<bool()> whether_to_drop_;
  bool dropped_ = false;  ///< the last step
  health::FlightRecord own_record_;
  health::FlightRecord* record_ = &own_record_;
  std::set<std::int64_t> seen_;         ///< numbers of segments of which a step has run
  std::vector<CapturedStep> captured_;  ///< the last used is the last; destroyed before the groups
  std::int64_t replays_ = 0;
  device::Event snapshot_copied_;
  bool update_waits_for_snapshot_ = false;  ///< the next one, before it overwrites what is copied
};

}  // namespace llampi::fsdp
