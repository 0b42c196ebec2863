// SPDX-License-Identifier: Apache-2.0
// The parts of an engine, and the order in which they work together.
#include "llampi/fsdp/engine.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "fsdp/admission.hpp"
#include "fsdp/norm_scalars.hpp"
#include "fsdp/runtime/inputs.hpp"
#include "fsdp/runtime/step_graph.hpp"
#include "fsdp/state/snapshot.hpp"
#include "fsdp/state/views.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/elements.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/fsdp/streams.hpp"

namespace llampi::fsdp {
namespace {

CompiledModel compile_what_fits(const Site& site, const model::Model& model, const EngineOptions& options,
                                const DeviceMesh& mesh) {
  const auto& precision = options.precision;
  require(!precision.shortens_gradient() || precision.gradient_shard == precision.reduce,
          "sharded gradients are kept in the dtype that layers write or in the one that is reduced in");
  CompiledModel compiled = compile_model(model, options, mesh, site.device.sizes(), site.world.backend());
  check_that_it_fits(site, model, options, mesh, compiled);
  return compiled;
}

/// Per unit: the real elements of what a rank updates, by parameter group.
/// @param replica its index among those that have the same shard
std::vector<std::vector<device::UpdateRange>> update_ranges(const model::Model& model,
                                                            const EngineOptions& options,
                                                            const std::vector<Unit>& units, int shard,
                                                            int replica) {
  std::vector<std::vector<device::UpdateRange>> all;
  for (const auto& unit : units) {
    auto& ranges = all.emplace_back();
    if (unit.frozen) continue;
    const std::int64_t part_begin = unit.state_parts > 1 ? replica * unit.part_elements() : 0;
    const std::int64_t part_end = part_begin + unit.part_elements();
    for (const auto& piece : shard_pieces(unit, shard)) {
      const optim::ParameterGroup group =
          options.training ? options.parameter_groups.at(piece.parameter) : optim::ParameterGroup{};
      if (group.frozen) continue;  // it joins a trained one
      const std::int64_t begin = std::max(part_begin, piece.shard_offset);
      const std::int64_t end = std::min(part_end, piece.shard_offset + piece.elements);
      if (begin >= end) continue;
      const auto& name = model.parameters()[piece.parameter].name;
      ranges.push_back({begin - part_begin, end - part_begin, group.weight_decay, group.learning_rate_factor,
                        RandomStream(options.seed, "round " + name).bits(0),
                        piece.begin + begin - piece.shard_offset});
    }
  }
  return all;
}

std::vector<std::vector<Fp8Piece>> all_fp8_pieces(const CompiledModel& compiled,
                                                  const std::vector<Fp8WeightPlace>& weights, int shard) {
  std::vector<std::vector<Fp8Piece>> pieces;
  for (int u = 0; u < static_cast<int>(compiled.units.size()); ++u)
    pieces.push_back(fp8_pieces(weights, compiled.units, u, shard));
  return pieces;
}

/// Elements of T on the device, as they are.
template <class T>
std::vector<T> downloaded(device::Device& device, Tensor tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.elements()));
  device.download(values.data(), tensor, device::Stream::compute);
  device.synchronize(device::Stream::compute);
  return values;
}

std::vector<double> as_doubles(device::Device& device, Tensor tensor) {
  std::vector<double> values(static_cast<std::size_t>(tensor.elements()));
  with_elements(tensor.dtype, [&](auto element, auto, auto widen) {
    const auto elements = downloaded<decltype(element)>(device, tensor);
    std::transform(elements.begin(), elements.end(), values.begin(), widen);
  });
  return values;
}

}  // namespace

struct Engine::Impl {
  Impl(const model::Model& the_model, const Site& site, const EngineOptions& the_options)
      : model(the_model),
        device(site.device),
        host(site.host),
        world(site.world),
        options(the_options),
        mesh(make_device_mesh(options.strategy, world.topology().node_of_rank, options.shard_group_size)),
        compiled(compile_what_fits(site, model, options,
                                   mesh)),  // first: a failure would abort the groups, and others with them
        shards(world.group(mesh.shards_of(world.rank()), {kUnshardStream, kReduceStream})),
        replicas(world.group(mesh.replicas_of(world.rank()),
                             {replicas_stream(options.all_reduce_stream, mesh.shard_count())})),
        arenas(world, device, compiled.arena_bytes) {
    if (options.training) step = bound(compiled.step);
    evaluation = bound(compiled.evaluation);
    fill_constants();
    if (const BufferId workspace = compiled.persistent().shared_workspace; workspace != BufferId::none)
      device.set_workspace(arenas.at(compiled.evaluation[workspace]));
  }

  BoundProgram bound(const Program& program) const {
    return bind(program, arenas, {{shards->rank(), shards->size()}, {replicas->rank(), replicas->size()}},
                handlers, names);
  }
  Tensor at(BufferId persistent) const { return arenas.at(compiled.evaluation[persistent]); }

  void fill_constants() {
    const auto& specs = compiled.constants;
    for (int c = 0; c < static_cast<int>(specs.size()); ++c) {
      std::vector<std::byte> table(static_cast<std::size_t>(specs[c].bytes()));
      model.fill_constant(c, specs[c], table.data());
      device.upload(at(compiled.persistent().constants[c]), table.data(), device::Stream::compute);
      device.synchronize(device::Stream::compute);
    }
  }

  void write_scalars(const optim::StepScalars& scalars) {
    device.synchronize(device::Stream::compute);  // the last ones have left
    optim::StepScalars* const leaving = scalars_in_transit(0);
    *leaving = scalars;
    std::fill_n(optim::loss_sums_of(leaving), scalars_elements() - optim::kStepScalars, 0.0);
    device.upload(at(compiled.persistent().step_scalars), leaving, device::Stream::compute);
  }

  /// Valid until the next call.
  optim::StepScalars& read_scalars() {
    optim::StepScalars* const arriving = scalars_in_transit(1);
    device.download(arriving, at(compiled.persistent().step_scalars), device::Stream::compute);
    executor.wait_for_device(device::Stream::compute);
    return *arriving;
  }

  std::int64_t scalars_elements() const {
    return compiled.evaluation[compiled.persistent().step_scalars].elements();
  }
  device::Memory allocate_transit() {
    device::Memory memory;
    comm::agree(world, [&] { memory = device.allocate_host(2 * scalars_bytes()); });
    return memory;
  }
  std::int64_t scalars_bytes() const { return scalars_elements() * size_of(DType::float64); }
  /// 0: on the way to the device; 1: from it.
  optim::StepScalars* scalars_in_transit(int way) const {
    auto* const bytes = static_cast<std::byte*>(transit.data());
    return static_cast<optim::StepScalars*>(static_cast<void*>(bytes + way * scalars_bytes()));
  }

  /// The shards that are gathered follow the masters wherever somebody may have written these.
  void refresh() {
    if (!std::exchange(stale, false)) return;
    std::optional<health::FlightScope> gathers;
    if (options.shard_optimizer_over_replicas)
      gathers.emplace(executor.record(), health::FlightOperation{"gather of updated shards"});
    refresh_shards(compiled, arenas, device, host, *replicas,
                   replicas_stream(options.all_reduce_stream, mesh.shard_count()));
    executor.wait_for_device(device::Stream::compute);  // the first gathers of a program wait for nothing
  }

  /// As after the constructor.
  void start_anew() {
    arenas.clear(device);
    graphs.forget();
    fill_constants();
    device.synchronize(device::Stream::compute);
    stale = true;
  }

  /// All ranks must choose alike between replay and issue. They do: `agreed` is, and observers and snapshots are the
  /// same on all ranks. Returns false if the step was aborted.
  bool run_step(std::span<const device::HostBatch> micro_batches, BatchCounts agreed) {
    const BatchCounts own = device::largest_counts(micro_batches);
    if (agreed == BatchCounts{}) {
      require(world.size() == 1 || !device.sizes().stages_inputs(),
              "a step of several ranks without the documents that they have agreed on");
      agreed = own;
    }
    require(agreed.are_enough_for(own), "a step of more documents or labels than the ranks have agreed on");
    const BatchCounts counts = rounded_counts.of(agreed, options.batch);
    const auto placed = place_inputs(compiled.step, arenas, micro_batches, counts);
    refresh();
    const bool replays =
        options.graph && device.can_capture() && !step.on_host && !executor.observed() && !snapshot.pending();
    return replays ? graphs.run(step, {placed}, counts) : executor.run(step, {placed});
  }

  void run_evaluation(const device::HostBatch& batch, std::int64_t logits_row) {
    write_scalars({});
    const auto placed = place_inputs(compiled.evaluation, arenas, {&batch, 1}, batch.counts());
    refresh();
    executor.run(evaluation, {placed, logits_row});
  }

  const model::Model& model;
  device::Device& device;
  device::Device& host;
  comm::World& world;
  EngineOptions options;
  DeviceMesh mesh;
  CompiledModel compiled;
  std::unique_ptr<comm::Group> shards, replicas;
  Arenas arenas;
  /// Page-locked: neither copy of the scalars holds the host up.
  device::Memory transit = allocate_transit();
  StateViews views{options, compiled, arenas, *shards, *replicas};
  Snapshot snapshot{device, compiled, views, arenas};
  std::vector<Fp8WeightPlace> fp8_weights =
      find_fp8_weights(compiled.specs, compiled.units, model.parameters());
  RankContext context{
      .model = model,
      .options = options,
      .units = compiled.units,
      .device = device,
      .host = host,
      .shards = *shards,
      .replicas = *replicas,
      .ranges = update_ranges(model, options, compiled.units, shards->rank(), replicas->rank()),
      .fp8_weights = fp8_weights,
      .fp8_pieces = all_fp8_pieces(compiled, fp8_weights, shards->rank()),
      .before_update = [this](device::Stream stream) { snapshot.hold_back(stream); }};
  HandlerTable handlers = all_handlers(context);
  ActionNames names{compiled.units, compiled.specs};
  BoundProgram step, evaluation;
  health::FlightRecord own_record;
  Executor executor{device, world, arenas, own_record};
  RoundedCounts rounded_counts;
  StepGraphs graphs{device, world, executor, options.graph_nodes};  ///< destroyed before the groups
  bool stale = true;  ///< parameter shards may not follow their masters
};

Engine::Engine(const model::Model& model, device::Device& device, device::Device& host, comm::World& world,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, Site{device, host, &host == &device, world}, options)) {}

/// Copies of a snapshot still go to memory that is about to be freed.
Engine::~Engine() {
  try {
    wait_for_snapshot();
  } catch (...) {  // a device that failed copies nothing any more
  }
}

void Engine::rehearse(bool few_labels) {
  const auto& options = impl_->options;
  const health::FlightPhase phase(record(), "rehearses steps");
  const RandomStream random(options.seed, "rehearsal");
  device::HostBatch batch(options.batch.tokens());
  const auto vocabulary = static_cast<std::uint64_t>(model().vocabulary());
  for (std::int64_t t = 0; t < batch.token_count(); ++t)
    batch.tokens()[t] = batch.labels()[t] = static_cast<std::int32_t>(random.bits(t) % vocabulary);
  batch.cut_into_documents(options.batch.seq_len);
  batch.valid_labels = batch.token_count();

  const auto step_and_evaluation = [&] {
    const std::vector<device::HostBatch> batches(static_cast<std::size_t>(options.micro_batches), batch);
    step(batches, {.valid_labels = batch.valid_labels * options.micro_batches, .counts = batch.counts()});
    evaluate(batch);
  };
  initialise(options.seed);
  step_and_evaluation();
  // Other numbers of labels change products of the head, which are those of the first micro-batch or of the second.
  std::function<bool()> should_abort = impl_->executor.ask_before_micro_batches({});
  for (int quarters = few_labels ? 3 : 0; quarters > 0; --quarters) {
    batch.valid_labels = ceil_div(batch.token_count() * quarters, 4);
    std::ranges::fill(batch.labels().subspan(static_cast<std::size_t>(batch.valid_labels)), -1);
    impl_->executor.ask_before_micro_batches([asked = 0]() mutable { return ++asked == 2; });
    step_and_evaluation();
  }
  impl_->executor.ask_before_micro_batches(std::move(should_abort));
  impl_->start_anew();
}

/// Whole sequences first, so that what devices say of what they decided last is about documents. Kernels for these
/// do not depend on how many there are.
void Engine::prepare_for_documents() {
  const auto& batch = impl_->options.batch;
  const health::FlightPhase phase(record(), "prepares for packed documents");
  for (const std::int64_t documents : {batch.sequences, batch.tokens()}) {
    for (const BoundProgram* program : {&impl_->step, &impl_->evaluation})
      prepare_layers(impl_->context, *program, {documents, {}});
  }
}

StepResult Engine::step(std::span<const device::HostBatch> micro_batches, const StepInputs& inputs) {
  const auto& options = impl_->options;
  require(static_cast<int>(micro_batches.size()) == options.micro_batches, "number of micro-batches");
  require(inputs.valid_labels > 0, "a step without valid labels");
  const device::Range range(impl_->device, "step");
  impl_->write_scalars(
      {.inverse_tokens = inputs.loss_scale / static_cast<double>(inputs.valid_labels),
       .loss_scale = inputs.loss_scale,
       .update = optim::scalars_of_update(options.adamw, inputs.optimizer_step, inputs.learning_rate)});
  const bool complete = impl_->run_step(micro_batches, inputs.counts);
  optim::StepScalars& scalars = impl_->read_scalars();
  record().end_step();
  const double* const losses = optim::loss_sums_of(&scalars);
  StepResult result{.loss_sums = {losses, losses + options.micro_batches},
                    .grad_norm = scalars.update.grad_norm,
                    .fp8 = scalars.fp8,
                    .aborted = !complete};
  for (const double loss : result.loss_sums) result.loss_sum += loss;
  return result;
}

double Engine::evaluate(const device::HostBatch& batch) {
  const device::Range range(impl_->device, "evaluation");
  impl_->run_evaluation(batch, -1);
  const double loss_sum = optim::loss_sums_of(&impl_->read_scalars())[0];
  record().end_step();
  return loss_sum;
}

std::vector<double> Engine::logits(const device::HostBatch& batch, std::int64_t row) {
  impl_->run_evaluation(batch, row);
  impl_->executor.wait_for_device(device::Stream::compute);
  return as_doubles(impl_->device, impl_->at(compiled().persistent().logits));
}

void Engine::initialise(std::uint64_t seed) {
  fill_with_initial_values(model(), impl_->device, impl_->host, pieces_to_load(), seed);
}

void Engine::initialise_adapters(std::uint64_t seed) {
  auto pieces = pieces_to_load();
  std::erase_if(pieces,
                [&](const StatePiece& piece) { return !model().parameters()[piece.parameter].adapter; });
  fill_with_initial_values(model(), impl_->device, impl_->host, pieces, seed);
}

std::vector<StatePiece> Engine::pieces_to_load() {
  wait_for_snapshot();
  impl_->stale = true;
  return impl_->views.to_load();
}

std::vector<StatePiece> Engine::pieces_held() const {
  if (impl_->options.shard_optimizer_over_replicas) impl_->refresh();
  return impl_->views.held();
}

std::vector<StatePiece> Engine::pieces_to_save() const { return impl_->views.to_save(); }

std::vector<StatePiece> Engine::snapshot() {
  require(options().snapshot, "a snapshot without room in the plan");
  impl_->snapshot.take(impl_->views);
  return impl_->views.in_snapshot();
}

void Engine::wait_for_snapshot() const { impl_->snapshot.wait(); }

void Engine::observe(Observer observer) { impl_->executor.observe(std::move(observer)); }

void Engine::ask_before_micro_batches(std::function<bool()> should_abort) {
  impl_->executor.ask_before_micro_batches(std::move(should_abort));
}

void Engine::keep_record(health::FlightRecord& record) {
  impl_->executor.keep_record(record);
  record.set_names(impl_->names.all());
  std::vector<health::FlightOperation> captured;
  for (const auto& action : compiled().step.actions) {
    if (action.ranks != Ranks::self) captured.push_back(impl_->names.noted(action));
  }
  record.set_captured(std::move(captured));
}

health::FlightRecord& Engine::record() { return impl_->executor.record(); }

const model::Model& Engine::model() const { return impl_->model; }
const EngineOptions& Engine::options() const { return impl_->options; }
const DeviceMesh& Engine::mesh() const { return impl_->mesh; }
const CompiledModel& Engine::compiled() const { return impl_->compiled; }
const Arenas& Engine::memory() const { return impl_->arenas; }
GraphCounts Engine::graph_counts() const { return impl_->graphs.counts(); }

int Engine::unit_of_bad_gradient() {
  const Tensor maxima = norm_scalars(impl_->at(compiled().persistent().norm_scalars)).unit_maxima;
  const auto bits = downloaded<std::int32_t>(impl_->device, maxima);
  for (std::size_t u = 0; u < bits.size(); ++u) {
    const bool finite = std::isfinite(std::bit_cast<float>(bits[u]));
    if (!finite && !compiled().units[u].frozen) return static_cast<int>(u);
  }
  return -1;
}

}  // namespace llampi::fsdp
