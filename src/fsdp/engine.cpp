// The engine at work: one list of actions after another.
#include "llampi/fsdp/engine.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "llampi/core/half.hpp"

namespace llampi::fsdp {

struct Engine::Running {
  const Execution& execution;
  std::span<const Input> inputs;
  std::int64_t logits_row = -1;
  Issue how = Issue::run;
  std::vector<std::unique_ptr<comm::Work>> works;  ///< per action; collectives
  std::vector<device::Event> events;               ///< per action; compute and copies
  std::vector<int> in_flight;                      ///< collectives not known to be done

  const Observer& observer;
  health::FlightRecord* record;          ///< null: what is captured does not happen
  std::vector<std::uint64_t> sequences;  ///< per action; collectives: their numbers in the record

  bool finished(int index) {
    if (observer) observer((*execution.actions)[index], index, Moment::end);
    return true;
  }
  /// Collectives of a stream end in order: with this one, those before it have. A device's stream that waits
  /// for it is end enough for the observer.
  void finished_up_to(int index, bool known) {
    const device::Stream stream = (*execution.actions)[index].stream;
    std::erase_if(in_flight, [&](int other) {
      if (other > index || (*execution.actions)[other].stream != stream) return false;
      if (known && record != nullptr) record->complete(sequences[other]);
      return finished(other);
    });
  }
  /// What is captured is not under way, and may not be asked.
  void progress() {
    if (how == Issue::capture) return;
    for (std::size_t k = in_flight.size(); k-- > 0;) {
      if (k < in_flight.size() && works[in_flight[k]]->progress()) finished_up_to(in_flight[k], true);
    }
  }
};

namespace {

/// What a device calls while the host waits for it, for as long as this lives.
class Progress {
 public:
  Progress(device::Device& device, std::function<void()> progress) : device_(device) {
    device.set_progress(std::move(progress));
  }
  ~Progress() { device_.set_progress({}); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  device::Device& device_;
};

}  // namespace

StepResult Engine::step(std::span<const device::HostBatch> micro_batches, const StepInputs& inputs) {
  require(static_cast<int>(micro_batches.size()) == options_.micro_batches, "number of micro-batches");
  require(inputs.valid_labels > 0, "a step without valid labels");
  const device::Range range(device_, "step");
  const auto t = static_cast<double>(inputs.optimizer_step);
  write_scalars({.inverse_tokens = inputs.loss_scale / static_cast<double>(inputs.valid_labels),
                 .loss_scale = inputs.loss_scale,
                 .step = t,
                 .learning_rate = inputs.learning_rate,
                 .bias_correction1 = 1 - std::pow(options_.adamw.beta1, t),
                 .bias_correction2 = 1 - std::pow(options_.adamw.beta2, t)});
  dropped_ = false;
  run_step(micro_batches);
  const auto scalars = read_scalars();
  record_->end_step();
  return {scalars.loss_sum, scalars.grad_norm, dropped_};
}

double Engine::evaluate(const device::HostBatch& batch) {
  const device::Range range(device_, "evaluation");
  write_scalars({});
  run(evaluation_, place_inputs(*evaluation_.plan, {&batch, 1}, batch.segments), -1);
  const double loss_sum = read_scalars().loss_sum;
  record_->end_step();
  return loss_sum;
}

std::vector<double> Engine::logits(const device::HostBatch& batch, std::int64_t row) {
  write_scalars({});
  run(evaluation_, place_inputs(*evaluation_.plan, {&batch, 1}, batch.segments), row);
  const Tensor device_logits =
      view(compiled_.evaluation_plan, options_.precision.compute, 1, model_.vocabulary(), Role::logits);
  std::vector<double> wide(model_.vocabulary());
  if (device_logits.dtype == DType::float64) {
    device_.download(wide.data(), device_logits, device::Stream::compute);
    device_.synchronize(device::Stream::compute);
    return wide;
  }
  if (size_of(device_logits.dtype) == 2) {
    std::vector<std::uint16_t> halves(model_.vocabulary());
    device_.download(halves.data(), device_logits, device::Stream::compute);
    device_.synchronize(device::Stream::compute);
    const auto widen = device_logits.dtype == DType::bfloat16 ? from_bfloat16 : from_float16;
    std::transform(halves.begin(), halves.end(), wide.begin(), widen);
    return wide;
  }
  std::vector<float> values(model_.vocabulary());
  device_.download(values.data(), device_logits, device::Stream::compute);
  device_.synchronize(device::Stream::compute);
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
    device_.upload(shard, narrow.data(), device::Stream::copy);
    device_.synchronize(device::Stream::copy);
  }
  device_.synchronize(device::Stream::compute);  // the first gathers of a list wait for nothing
  stale_ = false;
}

void Engine::run(const Execution& execution, std::span<const Input> inputs, std::int64_t logits_row) {
  refresh_shards();
  issue_all(execution, inputs, logits_row, Issue::run);
  wait_for_device(device::Stream::copy);
  wait_for_device(device::Stream::copy_out);
}

/// Afterwards Stream::compute waits for all collectives.
void Engine::issue_all(const Execution& execution, std::span<const Input> inputs, std::int64_t logits_row,
                       Issue how) {
  dropped_ = false;
  const auto count = execution.actions->size();
  Running running{.execution = execution,
                  .inputs = inputs,
                  .logits_row = logits_row,
                  .how = how,
                  .works = std::vector<std::unique_ptr<comm::Work>>(count),
                  .events = std::vector<device::Event>(count),
                  .in_flight = {},
                  .observer = observer_,
                  .record = how == Issue::run ? record_ : nullptr,
                  .sequences = std::vector<std::uint64_t>(count)};
  const Progress progress(device_, [&running] { running.progress(); });
  try {
    for (int i = 0; i < static_cast<int>(count) && !dropped_; ++i) {
      dropped_ = drops_before((*execution.actions)[i], how);
      if (!dropped_) issue(running, i);
    }
    for (int i = 0; i < static_cast<int>(count); ++i) {
      if (running.works[i]) wait_for(running, i, device::Stream::compute);
    }
  } catch (...) {
    // The job is about to end: waiting for collectives that other ranks may never join would hang it.
    for (auto& work : running.works) static_cast<void>(work.release());
    throw;
  }
}

/// What a micro-batch leaves behind before the update is overwritten by the next step.
bool Engine::drops_before(const Action& action, Issue how) const {
  const bool is_boundary = action.op == Op::forward && action.stage == 0 && action.micro_batch > 0;
  return is_boundary && how == Issue::run && whether_to_drop_ && whether_to_drop_();
}

/// Notices a rank that is lost meanwhile, which the device would wait for for ever.
void Engine::wait_for_device(device::Stream stream) {
  const device::Range range(device_, "wait for the device");
  record_->wait_for_device();
  const Progress progress(device_, [this] { world_.check(); });
  device_.synchronize(stream);
  record_->act("");
}

void Engine::wait_for(Running& running, int index, device::Stream stream) {
  if (const auto& work = running.works[index]) {
    if (running.record != nullptr) running.record->wait(running.sequences[index]);
    work->wait(stream);
    running.finished_up_to(index, running.record != nullptr && work->progress());
  } else {
    device_.wait(stream, running.events[index]);
  }
}

void Engine::issue(Running& running, int index) {
  const Action& action = (*running.execution.actions)[index];
  const device::Range range(device_, running.execution.names[index].c_str());
  for (const int w : action.waits) wait_for(running, w, action.stream);
  if (running.record != nullptr) {
    const health::FlightOperation what = noted(action);
    running.record->act(what.operation, what.name, what.micro_batch);
  }
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
      // The first in a step to write anything that a snapshot copies; what else does comes after it.
      if (std::exchange(update_waits_for_snapshot_, false)) device_.wait(action.stream, snapshot_copied_);
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
      view(plan, DType::int32, 1, device::HostBatch::elements(tokens), Role::inputs, action.micro_batch);
  const device::Batch batch{.tokens = inputs.slice(0, tokens),
                            .labels = inputs.slice(tokens, 2 * tokens),
                            .positions = inputs.slice(2 * tokens, 3 * tokens),
                            .segment_offsets = inputs.slice(3 * tokens, 4 * tokens + 1),
                            .segments = running.inputs[action.micro_batch].segments,
                            .past = running.inputs[action.micro_batch].past};
  model::StageContext context{.device = device_,
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
                              .kept = bound.kept,
                              .constants = constants_,
                              .scalars = scalars_,
                              .logits = {},
                              .logits_row = 0};
  const model::Stage& stage = *model_.stages()[action.stage];
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
    const auto values = running.inputs[action.micro_batch].values;
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
  if (running.record != nullptr) running.sequences[index] = running.record->issue(noted(action));
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
    const device::Accumulate accumulate = action.accumulate.front();
    work =
        action.op == Op::reduce
            ? shards_->reduce_scatter(whole, shard, accumulate, workspace, action.stream)
            : replicas_->all_reduce(whole, shard, comm::ReduceOp::sum, accumulate, workspace, action.stream);
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
  const auto over_shards = [&](Tensor values, comm::ReduceOp op) {
    device_.wait(device::Stream::reduce, device_.record(device::Stream::compute));
    const std::uint64_t sequence =
        running.record == nullptr ? 0 : running.record->issue({"norm", -1, values.bytes()});
    const auto work =
        shards_->all_reduce(values, values, op, device::Accumulate::no, workspace, device::Stream::reduce);
    if (running.record != nullptr) running.record->wait(sequence);
    work->wait(device::Stream::compute);
    if (running.record == nullptr) return;
    if (work->progress()) running.record->complete(sequence);
    running.record->act("norm");
  };
  std::vector<int> trained;
  for (int u = 0; u < static_cast<int>(compiled_.units.size()); ++u) {
    if (!compiled_.units[u].frozen) trained.push_back(u);
  }
  device_.zero(limbs);
  device_.zero(maximum);
  const Tensor maxima = unit_maxima(plan);
  for (const int u : trained) {
    device_.max_magnitude(gradient_shard(plan, u), ranges_[u], maximum);
    device_.copy(maximum, maxima.slice(u, u + 1));
  }
  over_shards(maximum, comm::ReduceOp::max);
  for (const int u : trained) device_.sum_squares(gradient_shard(plan, u), ranges_[u], maximum, limbs);
  over_shards(limbs, comm::ReduceOp::sum);
  device_.finish_norm(maximum, limbs, options_.clip_grad_norm, scalars_);
}

void Engine::update(const Running& running, const Action& action) {
  const MemoryPlan& plan = *running.execution.plan;
  const int unit = action.unit;
  device::Device& device = action.stream == device::Stream::host ? host_ : device_;
  const device::StepScalars* scalars = scalars_;
  Tensor gradient = gradient_shard(plan, unit);
  Tensor master = shard_of(Role::master, unit), exp_avg = shard_of(Role::exp_avg, unit),
         exp_avg_sq = shard_of(Role::exp_avg_sq, unit), shard = shard_of(Role::parameter_shard, unit);
  if (action.stream == device::Stream::host) {
    scalars = static_cast<const device::StepScalars*>(
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
  // AdamW leaves out padding, what is frozen, and after an overflow everything: the shard on its way has them
  // too.
  const bool on_its_way =
      shard.data != master.data && shard.data != shard_of(Role::parameter_shard, unit).data;
  if (on_its_way) device.cast(master, shard);
  device.adamw(gradient, ranges_[unit], options_.adamw, scalars, master, exp_avg, exp_avg_sq, shard);
}

/// The largest magnitude in this rank's shards of a unit and of all before it, as bits (int32), of each unit
/// that is trained. They tell where a gradient stopped being finite, when its memory has long other uses.
Tensor Engine::unit_maxima(const MemoryPlan& plan) const {
  constexpr std::int64_t kBefore = kNormScalarBytes / 4;
  const auto units = static_cast<std::int64_t>(compiled_.units.size());
  return view(plan, DType::int32, 1, kBefore + units, Role::norm_scalars).slice(kBefore, kBefore + units);
}

int Engine::unit_of_bad_gradient() {
  const Tensor maxima = unit_maxima(compiled_.step_plan);
  std::vector<std::int32_t> bits(compiled_.units.size());
  device_.download(bits.data(), maxima, device::Stream::compute);
  device_.synchronize(device::Stream::compute);
  for (std::size_t u = 0; u < bits.size(); ++u) {
    const bool finite = std::isfinite(std::bit_cast<float>(bits[u]));
    if (!finite && !compiled_.units[u].frozen) return static_cast<int>(u);
  }
  return -1;
}

Tensor Engine::scalars_view() const {
  return {scalars_, DType::float64, 1, sizeof(device::StepScalars) / sizeof(double)};
}

/// Where this rank's shard stands in a gathered unit.
Tensor Engine::place_in(Tensor whole) const {
  const std::int64_t n = whole.elements() / shards_->size();
  return whole.slice(shards_->rank() * n, (shards_->rank() + 1) * n);
}

void Engine::write_scalars(const device::StepScalars& scalars) {
  device_.upload(scalars_view(), &scalars, device::Stream::compute);
  device_.synchronize(device::Stream::compute);
}

/// A download to memory that is not page-locked holds the host up, so it comes after the wait.
device::StepScalars Engine::read_scalars() {
  device::StepScalars scalars;
  wait_for_device(device::Stream::compute);
  device_.download(&scalars, scalars_view(), device::Stream::compute);
  device_.synchronize(device::Stream::compute);
  return scalars;
}

}  // namespace llampi::fsdp
