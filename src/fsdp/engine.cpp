#include "llampi/fsdp/engine.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "llampi/core/half.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/core/text.hpp"

namespace llampi {
namespace {

/// Uploads host values in the dtype of the target.
void upload_values(Device& device, const std::vector<double>& values, Tensor target) {
  const std::vector<float> single(values.begin(), values.end());
  std::vector<std::uint16_t> narrow;
  const void* source = values.data();
  if (target.dtype == DType::float32) source = single.data();
  if (size_of(target.dtype) == 2) {
    for (const float value : single)
      narrow.push_back(target.dtype == DType::bfloat16 ? to_bfloat16(value) : to_float16(value));
    source = narrow.data();
  }
  device.upload(target, source, Stream::compute);
  device.synchronize(Stream::compute);
}

/// Per stage, the module of the block that it belongs to; -1 outside all blocks.
std::vector<int> blocks_of_stages(const Model& model, const std::vector<StageSpec>& specs) {
  const auto& modules = model.modules();
  std::vector<int> blocks;
  for (const auto& spec : specs) {
    const auto own =
        std::find_if(modules.begin(), modules.end(), [&](const auto& m) { return m.name == spec.module; });
    require(own != modules.end(), "a stage names a module that the model does not have");
    int m = static_cast<int>(own - modules.begin());
    while (m >= 0 && modules[m].type != model.block_type()) m = modules[m].parent;
    blocks.push_back(m);
  }
  return blocks;
}

}  // namespace

CompiledModel compile_model(const Model& model, const EngineOptions& options, const RankGroups& groups,
                            const OperationSizes& sizes) {
  CompiledModel compiled;
  for (const auto& stage : model.stages()) {
    compiled.specs.push_back(stage->spec(options.batch, options.precision.compute, sizes));
  }
  std::vector<bool> frozen;
  for (const auto& group : options.groups) frozen.push_back(group.frozen);
  compiled.units = wrap(model, compiled.specs, options.wrap, groups.shard_count(), frozen);
  compiled.constants = model.constants(options.batch.seq_len, options.precision.compute);

  ScheduleOptions schedule{.micro_batches = options.micro_batches,
                           .input_bytes = 4 * HostBatch::elements(options.batch.tokens()),
                           .replicas = groups.replica_count(),
                           .reshard_after_forward = reshards_after_forward(options.strategy),
                           .backward_prefetch = options.backward_prefetch,
                           .forward_prefetch = options.forward_prefetch,
                           .limit_all_gathers = options.limit_all_gathers,
                           .accumulate_unsharded = options.accumulate_unsharded,
                           .precision = options.precision,
                           .offload = options.offload,
                           .checkpointing = options.checkpointing,
                           .blocks = blocks_of_stages(model, compiled.specs)};
  if (options.training) compiled.step = compile(compiled.specs, compiled.units, schedule);
  schedule.forward_only = true;
  schedule.micro_batches = 1;
  compiled.evaluation = compile(compiled.specs, compiled.units, schedule);

  const PlanInput input{.specs = compiled.specs,
                        .units = compiled.units,
                        .constants = compiled.constants,
                        .batch = options.batch,
                        .precision = options.precision,
                        .offload = options.offload,
                        .shared_workspace = sizes.shared_workspace(),
                        .shards = groups.shard_count(),
                        .replicas = groups.replica_count(),
                        .checkpointing = options.checkpointing,
                        .micro_batches = options.training ? options.micro_batches : 1,
                        .optimizer_state = options.training,
                        .vocabulary = model.vocabulary()};
  if (options.training) compiled.step_plan = place(compiled.step, input);
  compiled.evaluation_plan = place(compiled.evaluation, input);
  for (int a = 0; a < kArenas; ++a) {
    compiled.arena_bytes[a] =
        std::max(compiled.step_plan.arena_bytes[a], compiled.evaluation_plan.arena_bytes[a]);
  }
  return compiled;
}

// ---- setting up ----

Engine::Engine(const Model& model, Device& device, Device& host, World& world, const EngineOptions& options)
    : model_(model),
      device_(device),
      host_(host),
      options_(options),
      placement_(state_placement(options.precision, options.offload)) {
  const auto& precision = options.precision;
  require(!precision.shortens_gradient() || precision.gradient_shard == precision.reduce,
          "sharded gradients are kept in the dtype that stages write or in the one that is reduced in");
  groups_ = make_groups(options.strategy, nodes_of_ranks(world), options.shard_group_size);
  shards_ = world.group(groups_.shards_of(world.rank()));
  replicas_ = world.group(groups_.replicas_of(world.rank()));
  compiled_ = compile_model(model, options, groups_, device);
  unit_of_ = unit_of_parameter(compiled_.units, model.parameters().size());
  check_that_it_fits(world);
  agree(world, [&] {
    arenas_[static_cast<int>(Arena::device)] =
        world.allocate(compiled_.arena_bytes[static_cast<int>(Arena::device)]);
    arenas_[static_cast<int>(Arena::host)] =
        device.allocate_host(compiled_.arena_bytes[static_cast<int>(Arena::host)]);
  });

  for (const auto& unit : compiled_.units) {
    auto& ranges = ranges_.emplace_back();
    if (unit.frozen) continue;
    for (const auto& piece : shard_pieces(unit, shards_->rank())) {
      const ParameterGroup group = options.training ? options.groups.at(piece.parameter) : ParameterGroup{};
      if (group.frozen) continue;  // it joins a trained one
      const auto& name = model.parameters()[piece.parameter].name;
      ranges.push_back({piece.shard_offset, piece.shard_offset + piece.elements, group.weight_decay,
                        group.learning_rate_factor, RandomStream(options.seed, "round " + name).bits(0),
                        piece.begin});
    }
  }
  const auto& plan = compiled_.evaluation_plan;
  for (int c = 0; c < static_cast<int>(compiled_.constants.size()); ++c) {
    const auto& spec = compiled_.constants[c];
    std::vector<std::byte> table(spec.bytes());
    model.fill_constant(c, spec, table.data());
    constants_.push_back(view(plan, spec.dtype, spec.rows, spec.cols, Role::constant, c));
    device.upload(constants_.back(), table.data(), Stream::compute);
    device.synchronize(Stream::compute);
  }
  scalars_ = static_cast<StepScalars*>(
      view(plan, DType::float64, 1, sizeof(StepScalars) / sizeof(double), Role::step_scalars).data);
  if (plan.has(Role::shared_workspace)) {
    const std::int64_t bytes = plan.find(Role::shared_workspace).bytes;
    device.set_workspace(view(plan, DType::int32, 1, bytes / 4, Role::shared_workspace));
  }
  if (options.training) step_ = bind(compiled_.step, compiled_.step_plan);
  evaluation_ = bind(compiled_.evaluation, compiled_.evaluation_plan);
}

Engine::~Engine() = default;

void Engine::check_that_it_fits(World& world) const {
  const std::int64_t planned =
      std::accumulate(compiled_.arena_bytes.begin(), compiled_.arena_bytes.end(), std::int64_t{0});
  agree(world, [&] {
    const std::int64_t available = device_.available_bytes(world.topology().local_ranks);
    if (planned <= available) return;
    throw_user_error(
        "the run needs {} per rank and {} has about {} for each of its {} rank(s); use more ranks, a smaller "
        "train.micro_batch or data.seq_len, or activation.checkpointing",
        format_bytes(planned), world.topology().host, format_bytes(available), world.topology().local_ranks);
  });
}

Tensor Engine::view(const MemoryPlan& plan, DType dtype, std::int64_t rows, std::int64_t cols, Role role,
                    int owner, int item) const {
  const auto& buffer = plan.find(role, owner, item);
  const auto arena = static_cast<std::size_t>(buffer.arena);
  const Tensor tensor{arenas_[arena].data() + buffer.offset, dtype, rows, cols};
  require(tensor.bytes() <= buffer.bytes, "a view larger than its buffer");
  high_water_[arena] = std::max(high_water_[arena], buffer.offset + in_arena(tensor.bytes()));
  return tensor;
}

Tensor Engine::flat(const MemoryPlan& plan, DType dtype, Role role, int unit, int item) const {
  return view(plan, dtype, 1, compiled_.units[unit].flat_elements(), role, unit, item);
}

/// Persistent buffers lie alike in both plans.
Tensor Engine::shard_of(Role role, int unit) const {
  const auto& precision = options_.precision;
  if (role == Role::master && !compiled_.evaluation_plan.has(role, unit)) role = Role::parameter_shard;
  const DType dtype = role == Role::parameter_shard
                          ? precision.param
                          : (role == Role::master ? precision.master : precision.moment);
  return view(compiled_.evaluation_plan, dtype, 1, compiled_.units[unit].shard_elements, role, unit);
}

Tensor Engine::gradient_shard(const MemoryPlan& plan, int unit) const {
  return view(plan, options_.precision.gradient_shard, 1, compiled_.units[unit].shard_elements,
              Role::sharded_gradient, unit);
}

Tensor Engine::whole_gradient(const MemoryPlan& plan, int unit) const {
  return flat(plan, options_.precision.gradient(), Role::whole_gradient, unit);
}

/// Where stages read a unit's parameters; none if the list never makes that copy, because no stage reads it.
Tensor Engine::parameters_of(const MemoryPlan& plan, int unit, Pass pass) const {
  const auto& precision = options_.precision;
  const int item = static_cast<int>(pass);
  const Role role = precision.widens() ? Role::widened : Role::gathered;
  if (plan.has(role, unit, item)) return flat(plan, precision.compute, role, unit, item);
  const bool kept_whole = compiled_.units[unit].shards == 1 && !precision.widens() && !placement_.host_shard;
  return kept_whole ? shard_of(Role::parameter_shard, unit) : Tensor{};
}

Engine::Execution Engine::bind(const std::vector<Action>& actions, const MemoryPlan& plan) const {
  Execution execution{&actions, &plan, {}, std::vector<bool>(actions.size(), false)};
  for (const auto& action : actions) {
    for (const int w : action.waits) execution.awaited[w] = true;
    const bool stage = action.op == Op::forward || action.op == Op::recompute || action.op == Op::backward;
    execution.bound.push_back(stage ? bind_stage(action, plan) : Bound{});
  }
  return execution;
}

Engine::Bound Engine::bind_stage(const Action& action, const MemoryPlan& plan) const {
  const bool backward = action.op == Op::backward;
  const auto& spec = compiled_.specs[action.stage];
  const bool reduced = shards_->size() * replicas_->size() > 1 || options_.precision.shortens_gradient();
  Bound bound;
  for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
    const auto& parameter = model_.parameters()[spec.parameters[i].parameter];
    const int u = unit_of_[spec.parameters[i].parameter];
    const auto& unit = compiled_.units[u];
    const auto place = std::find_if(unit.parameters.begin(), unit.parameters.end(), [&](const auto& p) {
      return p.parameter == spec.parameters[i].parameter;
    });
    const auto in = [&](Tensor buffer) {
      Tensor t = buffer.slice(place->offset, place->offset + place->elements);
      if (parameter.shape.size() == 2) t.rows = parameter.shape[0], t.cols = parameter.shape[1];
      return t;
    };
    const Tensor source = parameters_of(plan, u, action.copies[i]);
    bound.parameters.push_back(source ? in(source) : Tensor{});
    if (!backward) continue;
    if (unit.frozen) {
      bound.gradients.push_back({});
    } else {
      bound.gradients.push_back(in(reduced ? whole_gradient(plan, u) : gradient_shard(plan, u)));
    }
  }
  const auto bind_items = [&](const std::vector<BufferSpec>& items, Role role, std::vector<Tensor>& views) {
    for (int k = 0; k < static_cast<int>(items.size()); ++k) {
      views.push_back(view(plan, items[k].dtype, items[k].rows, items[k].cols, role, action.stage, k));
    }
  };
  const bool is_loss = action.stage + 1 == static_cast<int>(compiled_.specs.size());
  if (!(backward && is_loss)) bind_items(spec.saved, Role::saved, bound.saved);
  const bool selective = action.op == Op::recompute && options_.checkpointing == Checkpointing::selective;
  if (backward) bind_items(spec.backward_scratch, Role::backward_scratch, bound.scratch);
  if (!backward && !selective) bind_items(spec.forward_scratch, Role::forward_scratch, bound.scratch);
  const auto activation = [&](int stage) {
    const auto& output = compiled_.specs[stage].output;
    return view(plan, output.dtype, output.rows, output.cols, Role::activation, stage);
  };
  if (action.stage > 0) bound.input = activation(action.stage - 1);
  if (!backward && action.writes_output && spec.output.rows > 0) bound.output = activation(action.stage);
  return bound;
}

void Engine::initialise(std::uint64_t seed) {
  constexpr std::int64_t kChunk = std::int64_t{1} << 20;
  for (const auto& piece : pieces_to_load()) {
    const auto& parameter = model_.parameters()[piece.parameter];
    const RandomStream random(seed, "init " + parameter.name);
    for (std::int64_t begin = 0; begin < piece.master.elements(); begin += kChunk) {
      const std::int64_t count = std::min(kChunk, piece.master.elements() - begin);
      std::vector<double> values(count, 1.0);
      if (parameter.initializer.kind == Initializer::Kind::normal) {
        for (std::int64_t i = 0; i < count; ++i) {
          values[i] = parameter.initializer.standard_deviation * random.normal(piece.begin + begin + i);
        }
      }
      const Tensor target = piece.master.slice(begin, begin + count);
      upload_values(device_, values, target);
    }
  }
}

std::vector<StatePiece> Engine::pieces(bool divide_replicas) const {
  const int parts = divide_replicas ? replicas_->size() : 1;
  const int part = divide_replicas ? replicas_->rank() : 0;
  std::vector<StatePiece> result;
  for (int u = 0; u < static_cast<int>(compiled_.units.size()); ++u) {
    const Tensor master = shard_of(Role::master, u);
    const bool moments = options_.training && !compiled_.units[u].frozen;
    // Replicas hold the same shard: each answers for an equal slice of it.
    const std::int64_t begin = compiled_.units[u].shard_elements * part / parts;
    const std::int64_t end = compiled_.units[u].shard_elements * (part + 1) / parts;
    for (const auto& piece : shard_pieces(compiled_.units[u], shards_->rank())) {
      const std::int64_t from = std::max(begin, piece.shard_offset);
      const std::int64_t to = std::min(end, piece.shard_offset + piece.elements);
      if (from >= to) continue;
      StatePiece state{
          piece.parameter, piece.begin + from - piece.shard_offset, master.slice(from, to), {}, {}};
      if (moments && !options_.groups[piece.parameter].frozen) {
        state.exp_avg = shard_of(Role::exp_avg, u).slice(from, to);
        state.exp_avg_sq = shard_of(Role::exp_avg_sq, u).slice(from, to);
      }
      result.push_back(state);
    }
  }
  return result;
}

std::vector<StatePiece> Engine::pieces_to_save() const { return pieces(true); }
std::vector<StatePiece> Engine::pieces_to_load() {
  stale_ = true;
  return pieces(false);
}

void Engine::poison_transients() {
  for (const MemoryPlan* plan : {&compiled_.step_plan, &compiled_.evaluation_plan}) {
    for (const auto& buffer : plan->buffers) {
      if (buffer.persistent()) continue;
      std::byte* data = arenas_[static_cast<int>(buffer.arena)].data() + buffer.offset;
      const std::vector<unsigned char> ones(buffer.bytes, 0xFF);
      device_.upload({data, DType::int32, 1, buffer.bytes / 4}, ones.data(), Stream::compute);
      device_.synchronize(Stream::compute);
    }
  }
}

// ---- running ----

struct Engine::Running {
  const Execution& execution;
  std::span<const HostBatch> micro_batches;
  std::int64_t logits_row = -1;
  std::vector<std::unique_ptr<Work>> works;  ///< per action; collectives
  std::vector<Event> events;                 ///< per action; compute and copies
  std::vector<int> in_flight;                ///< collectives not known to be done

  const Observer& observer;

  bool finished(int index) {
    if (observer) observer((*execution.actions)[index], index, Moment::end);
    return true;
  }
  /// Collectives of a stream end in order: with this one, those before it have.
  void finished_up_to(int index) {
    const Stream stream = (*execution.actions)[index].stream;
    std::erase_if(in_flight, [&](int other) {
      return other <= index && (*execution.actions)[other].stream == stream && finished(other);
    });
  }
  void progress() {
    for (std::size_t k = in_flight.size(); k-- > 0;) {
      if (k < in_flight.size() && works[in_flight[k]]->progress()) finished_up_to(in_flight[k]);
    }
  }
};

StepResult Engine::step(std::span<const HostBatch> micro_batches, const StepInputs& inputs) {
  require(static_cast<int>(micro_batches.size()) == options_.micro_batches, "number of micro-batches");
  require(inputs.valid_labels > 0, "a step without valid labels");
  const auto t = static_cast<double>(inputs.optimizer_step);
  write_scalars({.inverse_tokens = inputs.loss_scale / static_cast<double>(inputs.valid_labels),
                 .loss_scale = inputs.loss_scale,
                 .step = t,
                 .learning_rate = inputs.learning_rate,
                 .bias_correction1 = 1 - std::pow(options_.adamw.beta1, t),
                 .bias_correction2 = 1 - std::pow(options_.adamw.beta2, t)});
  run(step_, micro_batches, -1);
  const auto scalars = read_scalars();
  return {scalars.loss_sum, scalars.grad_norm};
}

double Engine::evaluate(const HostBatch& batch) {
  write_scalars({});
  run(evaluation_, {&batch, 1}, -1);
  return read_scalars().loss_sum;
}

std::vector<double> Engine::logits(const HostBatch& batch, std::int64_t row) {
  write_scalars({});
  run(evaluation_, {&batch, 1}, row);
  const Tensor device_logits =
      view(compiled_.evaluation_plan, options_.precision.compute, 1, model_.vocabulary(), Role::logits);
  std::vector<double> wide(model_.vocabulary());
  if (device_logits.dtype == DType::float64) {
    device_.download(wide.data(), device_logits, Stream::compute);
    device_.synchronize(Stream::compute);
    return wide;
  }
  std::vector<float> values(model_.vocabulary());
  device_.download(values.data(), device_logits, Stream::compute);
  device_.synchronize(Stream::compute);
  std::copy(values.begin(), values.end(), wide.begin());
  return wide;
}

/// The copies of the parameters that are gathered follow the master wherever somebody may have written it.
void Engine::refresh_shards() {
  if (!stale_) return;
  for (int u = 0; u < static_cast<int>(compiled_.units.size()); ++u) {
    if (!compiled_.evaluation_plan.has(Role::master, u)) continue;
    const Tensor master = shard_of(Role::master, u), shard = shard_of(Role::parameter_shard, u);
    if (placement_.host_master == placement_.host_shard) {
      (placement_.host_master ? host_ : device_).cast(master, shard);
      continue;
    }
    std::vector<std::byte> narrow(shard.bytes());
    host_.cast(master, {narrow.data(), shard.dtype, 1, shard.elements()});
    device_.upload(shard, narrow.data(), Stream::copy);
    device_.synchronize(Stream::copy);
  }
  stale_ = false;
}

void Engine::run(const Execution& execution, std::span<const HostBatch> micro_batches,
                 std::int64_t logits_row) {
  refresh_shards();
  const auto count = execution.actions->size();
  Running running{.execution = execution,
                  .micro_batches = micro_batches,
                  .logits_row = logits_row,
                  .works = std::vector<std::unique_ptr<Work>>(count),
                  .events = std::vector<Event>(count),
                  .in_flight = {},
                  .observer = observer_};
  device_.set_progress([&running] { running.progress(); });
  try {
    for (int i = 0; i < static_cast<int>(count); ++i) issue(running, i);
    for (int i = 0; i < static_cast<int>(count); ++i) {
      if (running.works[i]) wait_for(running, i, Stream::compute);
    }
    device_.synchronize(Stream::copy);
    device_.synchronize(Stream::copy_out);
  } catch (...) {
    // The job is about to end: waiting for collectives that other ranks may never join would hang it.
    for (auto& work : running.works) static_cast<void>(work.release());
    device_.set_progress({});
    throw;
  }
  device_.set_progress({});
}

void Engine::wait_for(Running& running, int index, Stream stream) {
  if (const auto& work = running.works[index]) {
    work->wait(stream);
    running.finished_up_to(index);
  } else {
    device_.wait(stream, running.events[index]);
  }
}

void Engine::issue(Running& running, int index) {
  const Action& action = (*running.execution.actions)[index];
  for (const int w : action.waits) wait_for(running, w, action.stream);
  if (observer_) observer_(action, index, Moment::begin);
  switch (action.op) {
    case Op::copy_in:
      copy_in(running, action);
      break;
    case Op::copy_out:
      copy_out(running, action);
      break;
    case Op::forward:
    case Op::recompute:
    case Op::backward:
      compute(running, index);
      break;
    case Op::unshard:
    case Op::reduce:
    case Op::replica_reduce:
      collective(running, index);
      break;
    case Op::widen:
      widen(running, action);
      break;
    case Op::narrow:
      device_.cast(
          whole_gradient(*running.execution.plan, action.unit),
          flat(*running.execution.plan, options_.precision.reduce, Role::travelling_gradient, action.unit));
      break;
    case Op::norm:
      compute_norm(running);
      break;
    case Op::update:
      update(running, action);
      break;
    case Op::reshard:
      break;  // the memory belongs to the next life from here on
  }
  if (!running.works[index]) {
    if (running.execution.awaited[index]) running.events[index] = device_.record(action.stream);
    running.finished(index);
  }
  running.progress();
}

void Engine::compute(Running& running, int index) {
  const Action& action = (*running.execution.actions)[index];
  const Bound& bound = running.execution.bound[index];
  const MemoryPlan& plan = *running.execution.plan;
  const bool backward = action.op == Op::backward;

  const std::int64_t tokens = options_.batch.tokens();
  const Tensor inputs =
      view(plan, DType::int32, 1, HostBatch::elements(tokens), Role::inputs, action.micro_batch);
  const Batch batch{.tokens = inputs.slice(0, tokens),
                    .labels = inputs.slice(tokens, 2 * tokens),
                    .positions = inputs.slice(2 * tokens, 3 * tokens),
                    .segment_offsets = inputs.slice(3 * tokens, 4 * tokens + 1),
                    .segments = running.micro_batches[action.micro_batch].segments};
  StageContext context{.device = device_,
                       .batch = batch,
                       .seq_len = options_.batch.seq_len,
                       .input = bound.input,
                       .output = bound.output,
                       .gradient = {},
                       .parameters = bound.parameters,
                       .parameter_gradients = bound.gradients,
                       .accumulate = action.accumulate,
                       .saved = bound.saved,
                       .scratch = bound.scratch,
                       .constants = constants_,
                       .scalars = scalars_,
                       .logits = {},
                       .logits_row = 0};
  const Stage& stage = *model_.stages()[action.stage];
  if (backward) {
    const auto& stream = compiled_.specs.front().output;
    context.gradient = view(plan, stream.dtype, stream.rows, stream.cols, Role::residual_gradient);
    stage.backward(context);
    return;
  }
  if (action.op == Op::recompute && options_.checkpointing == Checkpointing::selective) {
    stage.recompute(context);
    return;
  }
  if (running.logits_row >= 0) {
    context.logits = view(plan, options_.precision.compute, 1, model_.vocabulary(), Role::logits);
    context.logits_row = running.logits_row;
  }
  stage.forward(context);
}

void Engine::copy_in(Running& running, const Action& action) {
  const MemoryPlan& plan = *running.execution.plan;
  const auto& precision = options_.precision;
  if (action.cargo == Cargo::inputs) {
    const auto values = running.micro_batches[action.micro_batch].values();
    device_.upload(view(plan, DType::int32, 1, static_cast<std::int64_t>(values.size()), Role::inputs,
                        action.micro_batch),
                   values.data(), action.stream);
  } else if (action.cargo == Cargo::shard) {
    const Tensor whole =
        flat(plan, precision.param, Role::gathered, action.unit, static_cast<int>(action.pass));
    device_.upload(place_in(whole), shard_of(Role::parameter_shard, action.unit).data, action.stream);
  } else if (action.cargo == Cargo::new_shard) {
    const Tensor kept = shard_of(Role::parameter_shard, action.unit);
    const Tensor source =
        precision.master == precision.param
            ? shard_of(Role::master, action.unit)
            : view(plan, precision.param, 1, kept.elements(), Role::host_shard, action.unit);
    device_.upload(kept, source.data, action.stream);
  } else {
    for (const auto& tensor : state_on_its_way(plan, action.unit)) {
      if (tensor.read) device_.upload(tensor.staged, tensor.kept.data, action.stream);
    }
  }
}

void Engine::copy_out(Running& running, const Action& action) {
  const MemoryPlan& plan = *running.execution.plan;
  if (action.cargo == Cargo::state) {
    for (const auto& tensor : state_on_its_way(plan, action.unit))
      device_.download(tensor.kept.data, tensor.staged, action.stream);
  } else if (action.cargo == Cargo::gradient) {
    const Tensor gradient = gradient_shard(plan, action.unit);
    device_.download(
        view(plan, gradient.dtype, 1, gradient.elements(), Role::host_gradient, action.unit).data, gradient,
        action.stream);
  } else {
    const Tensor scalars = scalars_view();
    device_.download(view(plan, scalars.dtype, 1, scalars.cols, Role::host_scalars).data, scalars,
                     action.stream);
  }
}

Tensor Engine::staged(const MemoryPlan& plan, Staged item, DType dtype, int unit) const {
  return view(plan, dtype, 1, compiled_.units[unit].shard_elements, Role::staged, unit,
              static_cast<int>(item));
}

/// Master, moments and the new shard, as far as they are kept in host memory.
std::vector<Engine::StateTensor> Engine::state_on_its_way(const MemoryPlan& plan, int unit) const {
  const Tensor master = shard_of(Role::master, unit), exp_avg = shard_of(Role::exp_avg, unit),
               exp_avg_sq = shard_of(Role::exp_avg_sq, unit), shard = shard_of(Role::parameter_shard, unit);
  std::vector<StateTensor> result;
  if (placement_.host_master)
    result.push_back({master, staged(plan, Staged::master, master.dtype, unit), true});
  result.push_back({exp_avg, staged(plan, Staged::exp_avg, exp_avg.dtype, unit), true});
  result.push_back({exp_avg_sq, staged(plan, Staged::exp_avg_sq, exp_avg_sq.dtype, unit), true});
  if (placement_.host_shard && placement_.own_master)
    result.push_back({shard, staged(plan, Staged::shard, shard.dtype, unit), false});
  return result;
}

void Engine::widen(Running& running, const Action& action) {
  const MemoryPlan& plan = *running.execution.plan;
  const int item = static_cast<int>(action.pass);
  const Tensor narrow = compiled_.units[action.unit].shards > 1 || placement_.host_shard
                            ? flat(plan, options_.precision.param, Role::gathered, action.unit, item)
                            : shard_of(Role::parameter_shard, action.unit);
  device_.cast(narrow, flat(plan, options_.precision.compute, Role::widened, action.unit, item));
}

void Engine::collective(Running& running, int index) {
  const Action& action = (*running.execution.actions)[index];
  const MemoryPlan& plan = *running.execution.plan;
  const auto& precision = options_.precision;
  auto& work = running.works[index];
  if (action.op == Op::unshard) {
    const Tensor whole =
        flat(plan, precision.param, Role::gathered, action.unit, static_cast<int>(action.pass));
    work = shards_->all_gather(
        placement_.host_shard ? place_in(whole) : shard_of(Role::parameter_shard, action.unit), whole,
        action.stream);
  } else {
    const auto& buffer = plan.find(Role::collective_workspace);
    const Tensor workspace = view(plan, DType::int32, 1, buffer.bytes / 4, Role::collective_workspace);
    const Tensor shard = gradient_shard(plan, action.unit);
    const bool join_shards = action.op == Op::replica_reduce && compiled_.units[action.unit].shards > 1;
    const Tensor whole =
        join_shards
            ? shard
            : (precision.narrows() ? flat(plan, precision.reduce, Role::travelling_gradient, action.unit)
                                   : whole_gradient(plan, action.unit));
    const Accumulate accumulate = action.accumulate.front();
    work = action.op == Op::reduce
               ? shards_->reduce_scatter(whole, shard, accumulate, workspace, action.stream)
               : replicas_->all_reduce(whole, shard, ReduceOp::sum, accumulate, workspace, action.stream);
  }
  running.in_flight.push_back(index);
}

/// Squares are summed over the shard group only: replicas hold equal gradients.
void Engine::compute_norm(Running& running) {
  const MemoryPlan& plan = *running.execution.plan;
  const auto& buffer = plan.find(Role::collective_workspace);
  const Tensor workspace = view(plan, DType::int32, 1, buffer.bytes / 4, Role::collective_workspace);
  const Tensor limbs = view(plan, DType::int64, 1, 2, Role::norm_scalars);
  const Tensor maximum{limbs.as<std::int64_t>() + 2, DType::int32, 1, 1};
  const auto over_shards = [&](Tensor values, ReduceOp op) {
    device_.wait(Stream::reduce, device_.record(Stream::compute));
    shards_->all_reduce(values, values, op, Accumulate::no, workspace, Stream::reduce)->wait(Stream::compute);
  };
  std::vector<int> trained;
  for (int u = 0; u < static_cast<int>(compiled_.units.size()); ++u) {
    if (!compiled_.units[u].frozen) trained.push_back(u);
  }
  device_.zero(limbs);
  device_.zero(maximum);
  for (const int u : trained) device_.max_magnitude(gradient_shard(plan, u), ranges_[u], maximum);
  over_shards(maximum, ReduceOp::max);
  for (const int u : trained) device_.sum_squares(gradient_shard(plan, u), ranges_[u], maximum, limbs);
  over_shards(limbs, ReduceOp::sum);
  device_.finish_norm(maximum, limbs, options_.clip_grad_norm, scalars_);
}

void Engine::update(const Running& running, const Action& action) {
  const MemoryPlan& plan = *running.execution.plan;
  const int unit = action.unit;
  Device& device = action.stream == Stream::host ? host_ : device_;
  const StepScalars* scalars = scalars_;
  Tensor gradient = gradient_shard(plan, unit);
  Tensor master = shard_of(Role::master, unit), exp_avg = shard_of(Role::exp_avg, unit),
         exp_avg_sq = shard_of(Role::exp_avg_sq, unit), shard = shard_of(Role::parameter_shard, unit);
  if (action.stream == Stream::host) {
    scalars = static_cast<const StepScalars*>(
        view(plan, DType::float64, 1, scalars_view().cols, Role::host_scalars).data);
    gradient = view(plan, gradient.dtype, 1, gradient.elements(), Role::host_gradient, unit);
    if (!placement_.host_shard) {
      shard = plan.has(Role::host_shard, unit)
                  ? view(plan, shard.dtype, 1, shard.elements(), Role::host_shard, unit)
                  : master;
    }
  } else if (options_.offload.optimizer) {
    if (placement_.host_master) master = staged(plan, Staged::master, master.dtype, unit);
    exp_avg = staged(plan, Staged::exp_avg, exp_avg.dtype, unit);
    exp_avg_sq = staged(plan, Staged::exp_avg_sq, exp_avg_sq.dtype, unit);
    if (placement_.host_shard)
      shard = placement_.own_master ? staged(plan, Staged::shard, shard.dtype, unit) : master;
  }
  device.adamw(gradient, ranges_[unit], options_.adamw, scalars, master, exp_avg, exp_avg_sq, shard);
}

Tensor Engine::scalars_view() const {
  return {scalars_, DType::float64, 1, sizeof(StepScalars) / sizeof(double)};
}

/// Where this rank's shard stands in a gathered unit.
Tensor Engine::place_in(Tensor whole) const {
  const std::int64_t n = whole.elements() / shards_->size();
  return whole.slice(shards_->rank() * n, (shards_->rank() + 1) * n);
}

void Engine::write_scalars(const StepScalars& scalars) {
  device_.upload(scalars_view(), &scalars, Stream::compute);
  device_.synchronize(Stream::compute);
}

StepScalars Engine::read_scalars() {
  StepScalars scalars;
  device_.download(&scalars, scalars_view(), Stream::compute);
  device_.synchronize(Stream::compute);
  return scalars;
}

}  // namespace llampi
