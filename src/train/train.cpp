// The training loop.
#include "llampi/train/train.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>

#include "comm/common_failure.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/memory_report.hpp"
#include "llampi/optim/loss_scaler.hpp"
#include "llampi/optim/schedule.hpp"
#include "train/compute.hpp"
#include "train/engine_config.hpp"
#include "train/inputs.hpp"
#include "train/not_finite.hpp"
#include "train/rank_0.hpp"
#include "train/replicas.hpp"
#include "train/resume.hpp"
#include "train/run_folder.hpp"
#include "train/saver.hpp"
#include "train/session.hpp"
#include "train/stop.hpp"
#include "train/trace.hpp"
#include "train/watchdog.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

/// The largest resident memory that this process has had.
std::int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

std::int64_t parameter_elements(const Model& model) {
  std::int64_t elements = 0;
  for (const auto& parameter : model.parameters()) elements += parameter.elements();
  return elements;
}

Decay decay_of(const std::string& name) {
  return name == "linear" ? Decay::linear : (name == "constant" ? Decay::constant : Decay::cosine);
}

class Trainer {
 public:
  using Complain = std::function<void(const std::string& summary)>;
  Trainer(World& world, const Config& config, const std::string& resolved, const Log& log)
      : world_(world), config_(config), resolved_(resolved), log_(log), started_(steady_seconds()) {}

  Outcome run(const Complain& complain);
  /// After a failure of this rank alone: lets go of a save under way and what it reads.
  void abandon_save();

 private:
  Outcome run_watched();
  void start_from(const fs::path& checkpoint, std::vector<Refused> refused);
  std::int64_t resume(fs::path checkpoint, std::vector<Refused>& refused);
  void open_run_folder();
  void describe_run();
  void describe_device();
  Outcome loop();
  StepMetrics one_step(std::int64_t step, std::span<const HostBatch> batches, std::int64_t valid);
  void scale_loss(std::int64_t step, bool overflow);
  void report_memory() const;
  void report_gpu_memory() const;
  double mfu(double tokens_per_second) const;
  void trace_step(std::int64_t step);
  void write_trace();
  void report(const StepMetrics& metrics);
  bool evaluate_now();
  void save();
  void start_saving();
  void finish_saving();
  void finish_what_is_saved();
  void notice_save();
  void settle_before_saving();
  void check_finite(const StepMetrics& metrics);
  void compare_replicas();
  [[noreturn]] void fail(const std::string& reason);
  bool told_to_stop() const;
  bool all_told_to_stop();
  bool out_of_time(double step_seconds) const;
  Outcome stop(bool late);
  fs::path stop_file() const { return fs::path(config_.run.dir) / "stop"; }
  void remove_stop_file() const;
  template <class Work>
  void attempt(const Work& work);
  void settle();
  bool due(std::int64_t every, std::int64_t step) const {
    return every > 0 && (step % every == 0 || step == total_steps_);
  }

  World& world_;
  const Config& config_;
  const std::string& resolved_;
  const Log& log_;
  const double started_;

  FlightRecord record_;
  Inputs inputs_;
  Compute compute_;
  std::string described_device_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RunFolder> folder_;  ///< rank 0
  LearningRateSchedule schedule_;
  TrainingState state_;
  std::int64_t total_steps_ = 0;
  std::int64_t first_step_ = 0;      ///< that this process runs
  std::int64_t compared_step_ = -1;  ///< at which replicas were equal
  double evaluation_seconds_ = 0;    ///< of the slowest so far
  bool dropped_ = false;             ///< the last step
  bool owes_evaluation_ = false;     ///< of the step at which the run was stopped
  std::exception_ptr failure_;       ///< of this rank, not yet known to the others
  double step_seconds_sum_ = 0;
  std::pair<std::int64_t, std::int64_t> traced_;  ///< first and last step to trace
  std::unique_ptr<Trace> trace_;
  NotFinitePolicy not_finite_;
  std::int64_t left_out_ = 0, left_out_in_a_row_ = 0;  ///< steps, because they were not finite
  double own_loss_ = 0;                                ///< of the last step, the sum of this rank
  std::unique_ptr<Saver> saver_;        ///< destroyed before the engine, whose snapshot it reads
  std::unique_ptr<Watchdog> watchdog_;  ///< destroyed first
};

/// Fills the engine from a checkpoint or, should that turn out to be damaged, the next older one that is
/// whole. Returns its step.
std::int64_t Trainer::resume(fs::path checkpoint, std::vector<Refused>& refused) {
  for (;;) {
    try {
      const auto saved =
          load_checkpoint(world_, compute_.device(), checkpoint, tensor_infos(*engine_),
                          tensor_pieces(engine_->pieces_to_load()), config_.run.resume_with_changes);
      state_ = continue_from(saved, state_);
      log_.info("resumed from {} at step {}", checkpoint.string(), saved.step);
      return saved.step;
    } catch (const DamagedCheckpoint& error) {  // on all ranks
      refused.push_back({checkpoint, error.what()});
      log_.warning("skipped a checkpoint: {}", error.what());
    }
    checkpoint = choose_start(world_, config_, inputs_.llama, state_, refused, log_).checkpoint;
  }
}

/// Fills the engine and says where the run stands.
void Trainer::start_from(const fs::path& checkpoint, std::vector<Refused> refused) {
  const FlightPhase phase(record_, checkpoint.empty() ? "reads the weights" : "reads the checkpoint");
  std::int64_t saved_step = -1;
  if (!checkpoint.empty()) {
    saved_step = resume(checkpoint, refused);
  } else if (config_.model.weights == "random") {
    engine_->initialise(config_.run.seed);
  } else {
    load_weights(world_, compute_.device(), config_.model.weights, inputs_.llama, *engine_,
                 config_.fsdp.sync_init == "broadcast" ? WeightsReading::broadcast : WeightsReading::each);
  }
  total_steps_ = total_steps(config_, state_);
  schedule_ = {decay_of(config_.optimizer.schedule), config_.optimizer.lr, config_.optimizer.min_lr,
               config_.optimizer.warmup_steps, total_steps_};
  const Saver::Run run{world_, compute_.device(), *engine_, config_, {inputs_.llama.json, resolved_}, record_,
                       log_};
  saver_ = std::make_unique<Saver>(run, saved_step, std::move(refused));
}

void Trainer::open_run_folder() {
  const std::string owes = from_rank_0(world_, [&] {
    folder_->open(resolved_, traced_.first > 0, state_.step);
    return folder_->metrics().ends_with_step(state_.step) ? "evaluation" : "";
  });
  owes_evaluation_ = !owes.empty() && due(config_.train.eval_every, state_.step);
}

/// Says it where it is not what was said last: which kernels a GPU takes is known after the first step.
void Trainer::describe_device() {
  const std::string description = compute_.device().describe();
  if (description == described_device_) return;
  log_.info("device: {}", description);
  described_device_ = description;
}

void Trainer::describe_run() {
  const auto& topology = world_.topology();
  const auto& compiled = engine_->compiled();
  std::int64_t trained = 0;
  const auto& parameters = inputs_.model->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p)
    trained += engine_->options().groups[p].frozen ? 0 : parameters[p].elements();
  const auto all = parameter_elements(*inputs_.model);
  log_.info("llampi: {} parameters{}, {} layers, vocabulary {}", all,
            trained < all ? fmt::format(" ({} of them trained)", trained) : "", inputs_.llama.layers,
            inputs_.llama.vocab_size);
  if (traced_.first > total_steps_)
    log_.warning("log.trace = {} is behind the last step {}: there will be no trace", config_.log.trace,
                 total_steps_);
  log_.info("ranks: {} on {}; {}", world_.size(), count(topology.nodes, "node"), world_.describe());
  describe_device();
  log_.info("fsdp: {}, {}; {}", config_.fsdp.strategy, count(std::ssize(compiled.units), "unit"),
            format_groups(engine_->groups()));
  if (config_.run.verify_replicas_every > 0 && engine_->groups().replica_count() == 1)
    log_.warning("run.verify_replicas_every: with this strategy no rank holds what another one holds");
  log_.info("memory per rank, planned for a step:");
  std::istringstream plan(format_plan(compiled.step_plan));
  for (std::string line; std::getline(plan, line);) log_.info("  {}", line);
  log_.info("data: {} tokens, {} samples of {}, {} steps per epoch; {} steps in all",
            inputs_.train_file->tokens(), inputs_.train_file->samples(config_.data.seq_len),
            config_.data.seq_len, inputs_.sampler->steps_per_epoch(), total_steps_);
}

Outcome Trainer::run(const Complain& complain) {
  record_.set_phase("starts");
  if (config_.run.watchdog_seconds > 0) {
    const WatchdogOptions options{config_.run.watchdog_seconds, config_.run.dir, complain};
    watchdog_ = std::make_unique<Watchdog>(world_, record_, options, log_);
  }
  Outcome outcome{};
  const auto error = common_failure([&] { outcome = run_watched(); });
  finish_what_is_saved();
  if (error) {
    if (watchdog_) watchdog_->leave();
    std::rethrow_exception(error);
  }
  const FlightScope scope(record_, {"end of the run"});
  if (watchdog_) watchdog_->finish();
  return outcome;
}

/// A save under way comes to its end, whatever has become of training.
void Trainer::finish_what_is_saved() {
  if (!saver_) return;
  static_cast<void>(common_failure([&] { saver_->finish(); }));
}

Outcome Trainer::run_watched() {
  const int threads = threads_per_rank(world_, config_.run.threads);
  agree(world_, [&] {
    inputs_ = open_inputs(config_, world_.size());
    state_ = inputs_.fresh;
  });
  from_rank_0(world_, [&] {  // before it is looked for what to continue from
    folder_ = std::make_unique<RunFolder>(config_.run.dir, log_);
    return std::string();
  });
  std::vector<Refused> refused;
  const Start start = choose_start(world_, config_, inputs_.llama, state_, refused, log_);
  if (start.finished) {
    log_.info("{} is the end of this run; nothing to do", start.checkpoint.string());
    return Outcome::done;
  }
  if (start.checkpoint.empty() && config_.model.weights != "random") {
    agree(world_, [&] {
      check_same_model(inputs_.llama, config_.model.config, config_of_weights(config_.model.weights),
                       config_.model.weights, "give the model.config that belongs to the weights");
    });
  }
  compute_ = open_compute(world_,
                          {.device = config_.run.device,
                           .threads = threads,
                           .share_gpu = config_.run.share_gpu,
                           .deterministic = config_.run.deterministic,
                           .tf32 = config_.run.tf32,
                           .attention = config_.run.attention},
                          log_);
  const int micro_batches = micro_batches_of_step(config_, world_.size());
  EngineOptions options;
  agree(world_, [&] {
    options = engine_options(config_, *inputs_.model, micro_batches,
                             compute_.on_gpu() ? Hardware::gpu : Hardware::cpu);
    traced_ = steps_to_trace(config_.log.trace);
    not_finite_ = NotFinitePolicy::parse(config_.train.not_finite);
  });
  check_gpus(world_, compute_, options.precision.compute, config_.run.tf32, inputs_.llama.head_dim, log_);
  engine_ =
      std::make_unique<Engine>(*inputs_.model, compute_.device(), *compute_.host, compute_.world(), options);
  engine_->keep_record(record_);
  start_from(start.checkpoint, std::move(refused));
  open_run_folder();
  describe_run();
  return loop();
}

/// True if this rank was told to stop: by a signal or, as rank 0 sees it, by the stop file.
bool Trainer::told_to_stop() const {
  std::error_code ignored;
  return take_stop_request() || (world_.rank() == 0 && fs::exists(stop_file(), ignored));
}

/// Within a step or an evaluation. Collective.
bool Trainer::all_told_to_stop() {
  std::int64_t told = told_to_stop() || out_of_time(0) ? 1 : 0;
  const FlightScope scope(record_, {"agreement on stopping"});
  world_.max(std::span(&told, 1));
  return told > 0;
}

/// True if run.max_hours leaves no time for another step, an evaluation that is due after it, and a save.
bool Trainer::out_of_time(double step_seconds) const {
  if (config_.run.max_hours <= 0) return false;
  double save = saver_->slowest_seconds();
  if (save == 0) {  // not measured yet: slow disks, which take 200 MB/s from each node
    const auto bytes = 12.0 * static_cast<double>(parameter_elements(*inputs_.model));
    save = 1 + bytes / (200e6 * world_.topology().nodes);
  }
  const double saves = saver_->is_under_way() ? 3 * save : 2 * save;
  const double evaluation = due(config_.train.eval_every, state_.step + 1) ? evaluation_seconds_ : 0;
  return steady_seconds() - started_ + 1.5 * step_seconds + evaluation + saves > config_.run.max_hours * 3600;
}

Outcome Trainer::stop(bool late) {
  const bool idle = state_.step < first_step_;
  if (!idle) save();
  write_trace();
  remove_stop_file();
  if (idle && late) {
    log_.warning(
        "no step fitted into run.max_hours = {}: the start took {}, and time to save is kept; allow more",
        config_.run.max_hours, format_duration(steady_seconds() - started_));
  }
  log_.info("stopped after step {}; run the same command again to continue", state_.step);
  return Outcome::stopped;
}

/// So that the next start does not stop at once.
void Trainer::remove_stop_file() const {
  if (world_.rank() != 0) return;
  std::error_code error;
  fs::remove(stop_file(), error);
  if (error) log_.warning("cannot remove {}: {}", stop_file().string(), error.message());
}

/// Keeps the first failure of this rank until settle(): a step needs no collective of its own for it.
template <class Work>
void Trainer::attempt(const Work& work) {
  if (failure_) return;
  try {
    work();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

/// Throws on every rank if any has failed. Collective.
void Trainer::settle() {
  agree(world_, [&] {
    if (failure_) std::rethrow_exception(failure_);
  });
}

Outcome Trainer::loop() {
  Loader loader(*inputs_.train_file, inputs_.batch_options, *inputs_.sampler, config_.train.global_batch,
                world_.rank(), world_.size());
  first_step_ = state_.step + 1;
  engine_->ask_before_micro_batches([&] { return all_told_to_stop(); });
  if (owes_evaluation_ && !evaluate_now()) return stop(out_of_time(0));
  double last_seconds = 0;
  while (state_.step < total_steps_) {
    const double begin = steady_seconds();
    record_.set_phase(state_.step < first_step_ ? "starts" : nullptr);
    record_.begin_step(state_.step + 1);
    record_.act("reading the data");
    std::vector<HostBatch> batches;
    attempt([&] { batches = loader.next(data_steps(state_) + 1); });
    notice_save();
    const double data_seconds = steady_seconds() - begin;

    // Valid labels of the global batch; ranks that failed, were told to stop, have no time for another step.
    std::int64_t counts[] = {0, failure_ ? 1 : 0, told_to_stop() ? 1 : 0, out_of_time(last_seconds) ? 1 : 0};
    for (const auto& batch : batches) counts[0] += batch.valid_labels;
    {
      const FlightScope scope(record_, {"agreement on the step"});
      world_.sum(counts);
    }
    if (counts[1] > 0) {
      finish_saving();  // a save that failed there fails here
      settle();
    }
    if (counts[2] + counts[3] > 0) return stop(counts[3] > 0);

    StepMetrics metrics = one_step(state_.step + 1, batches, counts[0]);
    if (dropped_) return stop(out_of_time(0));
    metrics.data_seconds = data_seconds;
    metrics.step_seconds = last_seconds = steady_seconds() - begin;
    metrics.tokens_per_second =
        static_cast<double>(config_.train.global_batch * config_.data.seq_len) / last_seconds;
    metrics.tokens_per_second_per_rank = metrics.tokens_per_second / world_.size();
    metrics.mfu = mfu(metrics.tokens_per_second_per_rank);
    metrics.memory_bytes = compute_.on_gpu() ? compute_.gpu_bytes_in_use() : peak_memory_bytes();
    {
      const FlightScope scope(record_, {"largest memory"});
      world_.max(std::span(&metrics.memory_bytes, 1));
    }
    record_.act("reporting the step");
    metrics.checkpoint_stall_seconds = saver_->take_stall_seconds();
    step_seconds_sum_ += last_seconds;
    report(metrics);
    if (state_.step == first_step_) describe_device();
    check_finite(metrics);
    if (due(config_.run.verify_replicas_every, state_.step)) compare_replicas();
    if (due(config_.train.eval_every, state_.step) && !evaluate_now()) return stop(out_of_time(0));
    if (state_.step == total_steps_) {
      save();
    } else if (due(config_.checkpoint.every, state_.step)) {
      start_saving();
    }
  }
  remove_stop_file();
  write_trace();
  return Outcome::done;
}

/// A step that is not finite ends the run, or was left out: with a norm that is not finite, which all ranks
/// share, nothing was updated.
void Trainer::check_finite(const StepMetrics& metrics) {
  const bool scaled_down = scales_loss(config_) && state_.loss_scale >= 1;
  if (std::isfinite(metrics.loss) && (std::isfinite(metrics.grad_norm) || scaled_down)) {
    left_out_in_a_row_ = 0;
    return;
  }
  const FlightPhase phase(record_, "looks for what is not finite");
  const std::string where = find_not_finite(world_, compute_.device(), *engine_, own_loss_);
  ++left_out_, ++left_out_in_a_row_;
  if (left_out_in_a_row_ <= not_finite_.skip) {
    log_.warning("step {} {}: its loss or gradient is not finite ({}); {} in a row, {} so far", metrics.step,
                 std::isfinite(metrics.grad_norm)
                     ? "counts as left out, but its gradient was finite and applied"
                     : "is left out",
                 where, left_out_in_a_row_, left_out_);
    return;
  }
  fail(fmt::format("the loss or the gradient is not finite at step {}: {}", metrics.step, where));
}

/// A file that is saved takes a part of each replica: it is whole, and wrong, if these are not equal.
void Trainer::compare_replicas() {
  if (config_.run.verify_replicas_every == 0 || compared_step_ == state_.step) return;
  const FlightPhase phase(record_, "compares replicas");
  const std::string difference = find_differing_replicas(world_, compute_.device(), *engine_);
  if (!difference.empty()) fail(fmt::format("after step {}, {}", state_.step, difference));
  compared_step_ = state_.step;
}

/// Ends the run, once a save under way has come to its end. On all ranks.
void Trainer::fail(const std::string& reason) {
  finish_saving();
  settle();
  const std::int64_t saved = saver_->saved_step();
  throw CommonError(fmt::format(
      "{}; {}", reason,
      saved < 0 ? "there is no checkpoint yet" : fmt::format("the newest checkpoint is of step {}", saved)));
}

StepMetrics Trainer::one_step(std::int64_t step, std::span<const HostBatch> batches, std::int64_t valid) {
  StepMetrics metrics{.step = step, .lr = schedule_.at(step), .tokens = valid};
  if (valid > 0) {
    trace_step(step);
    if (trace_) engine_->observe(trace_->observer(step));
    StepInputs inputs{metrics.lr, state_.optimizer_steps + 1, valid};
    if (scales_loss(config_)) inputs.loss_scale = metrics.loss_scale = state_.loss_scale;
    const auto result = engine_->step(batches, inputs);
    engine_->observe({});  // evaluations are not part of it
    if ((dropped_ = result.dropped)) return metrics;
    metrics.loss = own_loss_ = result.loss_sum;
    {
      const FlightScope scope(record_, {"sum of the losses"});
      world_.sum(std::span(&metrics.loss, 1));
    }
    metrics.loss /= static_cast<double>(valid);
    metrics.grad_norm = result.grad_norm;
    if (std::isfinite(result.grad_norm)) ++state_.optimizer_steps;
    if (scales_loss(config_)) scale_loss(step, !std::isfinite(result.grad_norm));
    if (step == first_step_) report_memory();
  } else {
    log_.warning("step {} has no valid labels: loss 0, no update", step);
  }
  state_.step = step;
  state_.tokens_seen += valid;
  state_.samples_consumed += config_.train.global_batch;
  state_.epoch = data_epoch(state_);
  metrics.tokens_seen = state_.tokens_seen;
  return metrics;
}

/// The gradient norm is the same on all ranks, so all leave a step out together.
void Trainer::scale_loss(std::int64_t step, bool overflow) {
  LossScaler scaler{state_.loss_scale, state_.loss_scale_good_steps};
  scaler.update(overflow);
  if (overflow) {
    log_.info("step {} is left out: a gradient overflowed with loss scale {}, the next has {}", step,
              state_.loss_scale, scaler.scale);
  }
  state_.loss_scale = scaler.scale;
  state_.loss_scale_good_steps = scaler.good_steps;
}

/// What was planned, what was used of it, and what the process has besides.
void Trainer::report_memory() const {
  const auto& planned = engine_->compiled().arena_bytes;
  const auto used = engine_->high_water();
  std::int64_t resident = peak_memory_bytes();
  world_.max(std::span(&resident, 1));
  const auto sum = [](const auto& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  };
  log_.info("memory per rank: planned {}, used {}; resident, with program and libraries, at most {}",
            format_bytes(sum(planned)), format_bytes(sum(used)), format_bytes(resident));
  if (compute_.on_gpu()) report_gpu_memory();
}

/// What is on the GPUs: the largest of each line over the ranks.
void Trainer::report_gpu_memory() const {
  const auto device = static_cast<std::size_t>(Arena::device);
  const std::int64_t arena = engine_->compiled().arena_bytes[device], opened = compute_.gpu_opened_bytes;
  const std::int64_t all = compute_.gpu_bytes_in_use();
  std::int64_t bytes[] = {opened, all - opened - arena, all, -compute_.gpu_properties.memory_bytes};
  world_.max(bytes);
  log_.info(
      "GPU memory per rank: CUDA context and libraries {}, arena planned {} and used {}, NCCL's "
      "communicators and what was loaded since {}; in all {} of {}{}",
      format_bytes(bytes[0]), format_bytes(arena), format_bytes(engine_->high_water()[device]),
      format_bytes(bytes[1]), format_bytes(bytes[2]), format_bytes(-bytes[3]),
      config_.run.share_gpu ? " (of all that share a GPU)" : "");
}

/// Share of the device's peak that the model's arithmetic takes; not a number where the peak is unknown.
double Trainer::mfu(double tokens_per_second) const {
  const double peak = compute_.peak_flops(engine_->options().precision.compute);
  if (peak == 0) return std::numeric_limits<double>::quiet_NaN();
  return inputs_.model->flops_per_token(config_.data.seq_len) * tokens_per_second / peak;
}

/// Switches the trace on and off, and writes one file per rank once the last traced step is done.
void Trainer::trace_step(std::int64_t step) {
  const bool wanted = traced_.first <= step && step <= traced_.second;
  if (wanted && !trace_) {
    trace_ = std::make_unique<Trace>(*engine_, world_.rank());
  } else if (!wanted && trace_) {
    write_trace();
  }
}

void Trainer::write_trace() {
  if (!trace_) return;
  agree(world_, [&] {
    trace_->write(fs::path(config_.run.dir) / "trace" / fmt::format("rank-{:05}.json", world_.rank()));
  });
  trace_.reset();
}

void Trainer::report(const StepMetrics& m) {
  attempt([&] {
    if (folder_) folder_->metrics().append(to_json(m) + "\n");
  });
  if (m.step % config_.log.every != 0 && m.step != total_steps_) return;
  const double average = step_seconds_sum_ / static_cast<double>(m.step - first_step_ + 1);
  log_.info("step {:>{}}/{}  loss {:.4f}  lr {:.2e}  grad norm {:.3f}  {:.0f} tokens/s  {} left", m.step,
            fmt::formatted_size("{}", total_steps_), total_steps_, m.loss, m.lr, m.grad_norm,
            m.tokens_per_second, format_duration(average * static_cast<double>(total_steps_ - m.step)));
}

/// False if it was dropped, to stop. The next run begins with it then.
bool Trainer::evaluate_now() {
  const FlightPhase phase(record_, "evaluates");
  const double begin = steady_seconds();
  const auto done = evaluate_file(world_, *engine_, *inputs_.eval_file, inputs_.batch_options,
                                  [&] { return state_.step < total_steps_ && all_told_to_stop(); });
  if (!done) return false;
  const auto& result = *done;
  evaluation_seconds_ = std::max(evaluation_seconds_, steady_seconds() - begin);
  if (result.tokens == 0) log_.warning("{} has no valid labels: there is no loss", config_.data.eval);
  log_.info("step {}  eval loss {:.4f}  perplexity {:.2f}  over {} tokens", state_.step, result.loss,
            result.perplexity, result.tokens);
  attempt([&] {
    if (folder_) folder_->metrics().append(evaluation_json(state_.step, result.loss) + "\n");
  });
  return true;
}

/// The metrics of a step are on disk before its checkpoint gets its name.
void Trainer::settle_before_saving() {
  const FlightPhase phase(record_, "gets ready to save");
  finish_saving();
  attempt([&] {
    if (folder_) folder_->metrics().sync();
  });
  settle();
  compare_replicas();
}

void Trainer::save() {
  settle_before_saving();
  saver_->save(state_);
}

void Trainer::start_saving() {
  settle_before_saving();
  saver_->start(state_);
}

/// A failure of this rank alone is not kept: the saves of other ranks wait for this one.
void Trainer::finish_saving() {
  if (!failure_) failure_ = common_failure([&] { saver_->finish(); });
}

/// Looks whether the save under way has come to its end. This rank may be the first to see it.
void Trainer::notice_save() {
  if (saver_->is_done()) finish_saving();
}

void Trainer::abandon_save() {
  if (!saver_ || !saver_->abandon()) return;
  static_cast<void>(engine_.release());
  static_cast<void>(new Compute(std::move(compute_)));  // of which the engine's memory is
}

}  // namespace

Outcome train(World& world, const Config& config, const std::string& resolved, const Log& log,
              const std::function<void(const std::string& summary)>& complain) {
  Trainer trainer(world, config, resolved, log);
  try {
    return trainer.run(complain);
  } catch (const UserError&) {
    throw;  // on all ranks: a save under way comes to its end
  } catch (const CommonError&) {
    throw;
  } catch (...) {
    trainer.abandon_save();
    throw;
  }
}

}  // namespace llampi
