// The engine before it runs: arenas, views of what the plan placed, initial values, pieces for checkpoints.
#include <algorithm>
#include <numeric>

#include "llampi/core/half.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/fsdp/fit.hpp"

namespace llampi::fsdp {
namespace {

/// Uploads host values in the dtype of the target.
void upload_values(device::Device& device, const std::vector<double>& values, Tensor target) {
  const std::vector<float> single(values.begin(), values.end());
  std::vector<std::uint16_t> narrow;
  const void* source = values.data();
  if (target.dtype == DType::float32) source = single.data();
  if (size_of(target.dtype) == 2) {
    for (const float value : single)
      narrow.push_back(target.dtype == DType::bfloat16 ? to_bfloat16(value) : to_float16(value));
    source = narrow.data();
  }
  device.upload(target, source, device::Stream::compute);
  device.synchronize(device::Stream::compute);
}

/// "backward model.layers.3.mlp", "copy_in inputs", "unshard model.layers.4".
std::string range_name(const Action& action, const CompiledModel& compiled) {
  std::string name = to_string(action.op);
  if (action.cargo != Cargo::none) name += fmt::format(" {}", to_string(action.cargo));
  if (action.stage >= 0) {
    name += " " + name_of(compiled.specs[action.stage]);
  } else if (action.unit >= 0) {
    name += " " + compiled.units[action.unit].name;
  }
  return name;
}

}  // namespace

Engine::Engine(const model::Model& model, device::Device& device, device::Device& host, comm::World& world,
               const EngineOptions& options)
    : model_(model),
      device_(device),
      host_(host),
      world_(world),
      options_(options),
      placement_(state_placement(options.precision, options.offload)) {
  const auto& precision = options.precision;
  require(!precision.shortens_gradient() || precision.gradient_shard == precision.reduce,
          "sharded gradients are kept in the dtype that stages write or in the one that is reduced in");
  groups_ = make_groups(options.strategy, nodes_of_ranks(world), options.shard_group_size);
  shards_ = world.group(groups_.shards_of(world.rank()));
  replicas_ = world.group(groups_.replicas_of(world.rank()));
  compiled_ = compile_model(model, options, groups_, device, world.backend());
  unit_of_ = unit_of_parameter(compiled_.units, model.parameters().size());
  check_that_it_fits(world);
  comm::agree(world, [&] {
    arenas_[static_cast<int>(Arena::device)] =
        world.allocate(compiled_.arena_bytes[static_cast<int>(Arena::device)]);
    arenas_[static_cast<int>(Arena::host)] =
        device.allocate_host(compiled_.arena_bytes[static_cast<int>(Arena::host)]);
  });

  for (const auto& unit : compiled_.units) {
    auto& ranges = ranges_.emplace_back();
    if (unit.frozen) continue;
    for (const auto& piece : shard_pieces(unit, shards_->rank())) {
      const optim::ParameterGroup group =
          options.training ? options.groups.at(piece.parameter) : optim::ParameterGroup{};
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
    device.upload(constants_.back(), table.data(), device::Stream::compute);
    device.synchronize(device::Stream::compute);
  }
  scalars_ = static_cast<device::StepScalars*>(
      view(plan, DType::float64, 1, sizeof(device::StepScalars) / sizeof(double), Role::step_scalars).data);
  if (plan.has(Role::shared_workspace)) {
    const std::int64_t bytes = plan.find(Role::shared_workspace).bytes;
    device.set_workspace(view(plan, DType::int32, 1, bytes / 4, Role::shared_workspace));
  }
  if (options.training) step_ = bind(compiled_.step, compiled_.step_plan);
  evaluation_ = bind(compiled_.evaluation, compiled_.evaluation_plan);
}

/// Copies of a snapshot still go to memory that is about to be freed.
Engine::~Engine() {
  try {
    wait_for_snapshot();
  } catch (...) {  // a device that failed copies nothing any more
  }
}

/// Units, then stages: FlightOperation::name.
void Engine::keep_record(health::FlightRecord& record) {
  record_ = &record;
  std::vector<std::string> names;
  for (const auto& unit : compiled_.units) names.push_back(unit.name);
  for (const auto& stage : compiled_.specs) names.push_back(name_of(stage));
  record.set_names(std::move(names));
  std::vector<health::FlightOperation> captured;
  for (const auto& action : compiled_.step) {
    const bool collective =
        action.op == Op::unshard || action.op == Op::reduce || action.op == Op::replica_reduce;
    if (collective || action.op == Op::norm) captured.push_back(noted(action));
  }
  record.set_captured(std::move(captured));
}

health::FlightOperation Engine::noted(const Action& action) const {
  const int name = action.stage >= 0 ? static_cast<int>(compiled_.units.size()) + action.stage : action.unit;
  return {to_string(action.op), name, action.bytes, action.micro_batch};
}

void Engine::check_that_it_fits(comm::World& world) const {
  const bool one_memory = &host_ == &device_;
  const comm::Backend backend = world.backend();
  const int local_ranks = world.topology().local_ranks;
  // Communicators get their buffers with their first collectives, kernels are loaded when they are first
  // used.
  const auto on_device = [&](const auto& arenas, const RankGroups& groups) {
    return arenas[0] + (one_memory ? arenas[1] : 0) + communicator_bytes(backend, groups) +
           loaded_later_bytes(backend);
  };
  comm::agree(world, [&] {
    const std::int64_t device_bytes = device_.available_bytes(local_ranks);
    const std::int64_t host_bytes = host_.available_bytes(local_ranks);
    const auto device_fits = [&](const auto& arenas, const RankGroups& groups) {
      return on_device(arenas, groups) <= device_bytes;
    };
    const auto host_fits = [&](const auto& arenas) { return one_memory || arenas[1] <= host_bytes; };
    const bool device_is_full = !device_fits(compiled_.arena_bytes, groups_);
    if (!device_is_full && host_fits(compiled_.arena_bytes)) return;
    const std::optional<Arena> arena =
        one_memory ? std::nullopt : std::optional(device_is_full ? Arena::device : Arena::host);
    const std::string advice = advice_to_fit({.model = model_,
                                              .options = options_,
                                              .groups = groups_,
                                              .sizes = device_,
                                              .backend = backend,
                                              .fits = [&](const auto& arenas, const RankGroups& groups) {
                                                return device_fits(arenas, groups) && host_fits(arenas);
                                              }});
    throw_user_error(
        "needs {} of {} per rank, but {} has about {} for each of its {}; largest items: {}; {}",
        format_bytes(device_is_full ? on_device(compiled_.arena_bytes, groups_) : compiled_.arena_bytes[1]),
        one_memory ? "memory" : (device_is_full ? "GPU memory" : "host memory"), world.topology().host,
        format_bytes(device_is_full ? device_bytes : host_bytes), count(local_ranks, "rank"),
        largest_items(compiled_, arena), advice);
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
  Execution execution{&actions, &plan, {}, std::vector<bool>(actions.size(), false), {}};
  for (const auto& action : actions) {
    execution.names.push_back(range_name(action, compiled_));
    execution.on_host = execution.on_host || action.stream == device::Stream::host;
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
  const auto bind_items = [&](const std::vector<model::BufferSpec>& items, Role role,
                              std::vector<Tensor>& views) {
    for (int k = 0; k < static_cast<int>(items.size()); ++k) {
      views.push_back(view(plan, items[k].dtype, items[k].rows, items[k].cols, role, action.stage, k));
    }
  };
  const bool is_loss = action.stage + 1 == static_cast<int>(compiled_.specs.size());
  bind_items(spec.kept, Role::kept, bound.kept);
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
      if (parameter.initializer.kind == model::Initializer::Kind::normal) {
        for (std::int64_t i = 0; i < count; ++i) {
          values[i] = parameter.initializer.standard_deviation * random.normal(piece.begin + begin + i);
        }
      }
      const Tensor target = piece.master.slice(begin, begin + count);
      upload_values(device_, values, target);
    }
  }
}

/// Replicas hold the same shard: each saves an equal slice of it.
Engine::ShardPart Engine::saved_part(int unit) const {
  const std::int64_t elements = compiled_.units[unit].shard_elements;
  const int parts = replicas_->size(), part = replicas_->rank();
  return {elements * part / parts, elements * (part + 1) / parts};
}

/// @param state_of elements [begin, end) of a unit's shard
std::vector<StatePiece> Engine::pieces(bool divide_replicas, const StateOf& state_of) const {
  std::vector<StatePiece> result;
  for (int u = 0; u < static_cast<int>(compiled_.units.size()); ++u) {
    const auto& unit = compiled_.units[u];
    const ShardPart part = divide_replicas ? saved_part(u) : ShardPart{0, unit.shard_elements};
    for (const auto& piece : shard_pieces(unit, shards_->rank())) {
      const std::int64_t from = std::max(part.begin, piece.shard_offset);
      const std::int64_t to = std::min(part.end, piece.shard_offset + piece.elements);
      if (from >= to) continue;
      const auto state = [&](Role role) {
        return state_of(role, u, part).slice(from - part.begin, to - part.begin);
      };
      auto& made = result.emplace_back(
          StatePiece{piece.parameter, piece.begin + from - piece.shard_offset, state(Role::master), {}, {}});
      if (!options_.training || unit.frozen || options_.groups[piece.parameter].frozen) continue;
      made.exp_avg = state(Role::exp_avg);
      made.exp_avg_sq = state(Role::exp_avg_sq);
    }
  }
  return result;
}

Tensor Engine::state_in_place(Role role, int unit, ShardPart part) const {
  return shard_of(role, unit).slice(part.begin, part.end);
}

std::vector<StatePiece> Engine::pieces_to_save() const {
  return pieces(true, [&](Role role, int u, ShardPart part) { return state_in_place(role, u, part); });
}

std::vector<StatePiece> Engine::pieces_held() const {
  return pieces(false, [&](Role role, int u, ShardPart part) { return state_in_place(role, u, part); });
}

std::vector<StatePiece> Engine::pieces_to_load() {
  wait_for_snapshot();
  stale_ = true;
  return pieces_held();
}

Tensor Engine::snapshot_of(Role role, int unit, ShardPart part) const {
  return view(compiled_.evaluation_plan, shard_of(role, unit).dtype, 1, part.end - part.begin, Role::snapshot,
              unit, static_cast<int>(role));
}

std::vector<StatePiece> Engine::snapshot() {
  require(options_.snapshot, "a snapshot for which there is no room");
  for (const auto stream : {device::Stream::compute, device::Stream::copy})
    device_.wait(device::Stream::copy_out, device_.record(stream));
  for (const auto& buffer : compiled_.evaluation_plan.buffers) {
    if (buffer.role != Role::snapshot) continue;
    const auto role = static_cast<Role>(buffer.item);
    const ShardPart part = saved_part(buffer.owner);
    // The device's own copy: it also takes what is kept in host memory.
    device_.download(snapshot_of(role, buffer.owner, part).data, state_in_place(role, buffer.owner, part),
                     device::Stream::copy_out);
  }
  snapshot_copied_ = device_.record(device::Stream::copy_out);
  update_waits_for_snapshot_ = true;
  return pieces(true, [&](Role role, int u, ShardPart part) { return snapshot_of(role, u, part); });
}

void Engine::poison_transients() {
  for (const MemoryPlan* plan : {&compiled_.step_plan, &compiled_.evaluation_plan}) {
    for (const auto& buffer : plan->buffers) {
      if (buffer.persistent()) continue;
      std::byte* data = arenas_[static_cast<int>(buffer.arena)].data() + buffer.offset;
      const std::vector<unsigned char> ones(buffer.bytes, 0xFF);
      device_.upload({data, DType::int32, 1, buffer.bytes / 4}, ones.data(), device::Stream::compute);
      device_.synchronize(device::Stream::compute);
    }
  }
}

}  // namespace llampi::fsdp
