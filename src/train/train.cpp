// SPDX-License-Identifier: Apache-2.0
// The training loop.
#include "llampi/train/train.hpp"
#include "llampi/train/open_compute.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/exact_sum.hpp"
#include "llampi/core/leak.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/memory_report.hpp"
#include "llampi/health/watchdog.hpp"
#include "llampi/infer/session.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/optim/loss_scaler.hpp"
#include "llampi/optim/schedule.hpp"
#include "llampi/train/evaluate.hpp"
#include "llampi/train/run_text.hpp"
#include "llampi/train/stop.hpp"
#include "train/decisions.hpp"
#include "train/engine_config.hpp"
#include "train/inputs.hpp"
#include "train/journal.hpp"
#include "train/not_finite.hpp"
#include "train/placement_note.hpp"
#include "train/replicas.hpp"
#include "train/resume.hpp"
#include "train/room.hpp"
#include "train/run_engine.hpp"
#include "train/run_folder.hpp"
#include "train/run_report.hpp"
#include "train/run_warnings.hpp"
#include "train/saver.hpp"
#include "train/step_agreement.hpp"
#include "train/stopping.hpp"
#include "train/trace.hpp"
#include "train/tuning.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

/// How long another job may hold the run folder, in addition to one save: a job that was killed may need some time to exit, and
/// file servers keep the lock of a node that failed for a minute or two.
constexpr double kLockSeconds = 120;

/// A step of which the ranks have not told each other their losses yet.
struct UnreportedStep {
  StepMetrics metrics;
  ExactSum losses;      ///< of this rank
  double own_loss = 0;  ///< their sum
  device::Fp8Counts fp8;
  double busy_seconds = 0;   ///< that this rank did not wait for others
  bool scaled_down = false;  ///< an infinite gradient belongs to the search for the loss scale
};

class Trainer {
 public:
  using Complain = std::function<void(const std::string& summary)>;
  Trainer(comm::World& world, const Config& config, const ConfigTexts& texts, const Log& log)
      : world_(world),
        config_(config),
        texts_(texts),
        log_(log),
        stopping_(config.run.dir, config.run.max_hours, world.rank()),
        journal_(config, log),
        agreement_(world),
        traces_(world, config),
        not_finite_(config.train.not_finite, log) {}

  Outcome run(const Complain& complain);
  /// After a failure of this rank alone: lets go of a save under way and what it reads.
  void abandon_save();

 private:
  Outcome run_watched();
  bool take_folder();
  void fill_engine(std::vector<checkpoint::Refused> refused, const Decisions& decisions);
  std::int64_t resume(std::vector<checkpoint::Refused>& refused);
  checkpoint::CheckpointTexts checkpoint_texts() const;
  void prepare_for_documents();
  void look_for_room(const std::vector<checkpoint::Refused>& refused);
  void open_run_folder();
  Outcome loop();
  Outcome finish();
  UnreportedStep one_step(std::int64_t step, std::span<const device::HostBatch> batches,
                          fsdp::StepInputs inputs);
  void start_agreement(std::span<const device::HostBatch> next_batches, double seconds_to_go_on);
  void finish_agreement();
  void report_last_step(const StepFacts& of_all);
  bool must_know_now(const StepMetrics& metrics) const;
  void note_fp8(StepMetrics& metrics, const device::Fp8Counts& counts);
  void scale_loss(std::int64_t step, bool overflow);
  bool evaluate_now();
  void save(CheckpointContent content);
  void start_saving();
  void finish_saving();
  void finish_what_is_saved();
  void notice_save();
  void settle_before_saving();
  void check_finite(const UnreportedStep& step);
  void compare_replicas();
  [[noreturn]] void fail(const std::string& reason);
  bool all_told_to_stop();
  bool steps_are_long() const;
  double seconds_to_go_on(int steps, double step_seconds) const;
  Outcome stop();
  template <class Work>
  void attempt(const Work& work);
  void settle();
  bool due(std::int64_t every, std::int64_t step) const {
    return every > 0 && (step % every == 0 || step == total_steps_);
  }

  comm::World& world_;
  const Config& config_;
  const ConfigTexts& texts_;
  const Log& log_;
  Stopping stopping_;
  StopTally tally_{stopping_};

  health::FlightRecord record_;
  Inputs inputs_;
  comm::Compute compute_;
  std::unique_ptr<fsdp::Engine> engine_;
  Journal journal_;
  std::unique_ptr<RunReport> report_;
  optim::LearningRateSchedule schedule_;
  Start start_;
  ChoicesOfRun choices_;
  checkpoint::TrainingState state_;
  std::int64_t total_steps_ = 0;
  std::int64_t first_step_ = 0;      ///< that this process runs
  std::int64_t compared_step_ = -1;  ///< at which replicas were equal
  double evaluation_seconds_ = 0;    ///< of the slowest so far
  bool aborted_ = false;             ///< the last step
  bool owes_evaluation_ = false;     ///< of the step at which the run was stopped
  std::exception_ptr failure_;       ///< of this rank, not yet known to the others
  std::exception_ptr data_failure_;  ///< likewise, but of the step after this one
  StepAgreement agreement_;
  std::optional<UnreportedStep> unreported_;
  fsdp::StepInputs next_inputs_;     ///< what all ranks know of the next step's batch
  double slowest_step_seconds_ = 0;  ///< of any rank, in the last step that was reported; 0: none was
  bool some_failed_ = false;         ///< some rank had a failure when the ranks last told each other
  StepTraces traces_;
  NotFiniteSteps not_finite_;
  fs::path resumed_from_;  ///< empty where the run begins
  bool warned_of_fp8_ = false;
  std::unique_ptr<Room> room_;
  std::shared_ptr<health::SideWork> side_work_ = std::make_shared<health::SideWork>();
  std::unique_ptr<Saver> saver_;                ///< destroyed before the engine, whose snapshot it reads
  std::unique_ptr<health::Watchdog> watchdog_;  ///< destroyed first
};

/// Fills the engine from a checkpoint or, should that turn out to be damaged, the next older one that is
/// whole. Returns its step.
std::int64_t Trainer::resume(std::vector<checkpoint::Refused>& refused) {
  for (;;) {
    const fs::path checkpoint = start_.checkpoint;
    try {
      const auto saved = fill_from_start(world_, compute_.device(), *engine_, start_, inputs_, config_, log_);
      state_ = continue_from(saved, state_);
      resumed_from_ = checkpoint;
      return saved.step;
    } catch (const checkpoint::DamagedCheckpoint& error) {  // on all ranks
      refused.push_back({checkpoint, error.what()});
      log_.warning("skipped a checkpoint: {}", error.what());
    }
    start_ = choose_start(world_, config_, texts_, inputs_, refused, log_);
  }
}

/// Fills the engine and says where the run stands.
void Trainer::fill_engine(std::vector<checkpoint::Refused> refused, const Decisions& decisions) {
  const bool begins = start_.checkpoint.empty();
  const health::FlightPhase phase(record_, begins ? "reads the weights" : "reads the checkpoint");
  std::int64_t saved_step = -1;
  if (begins) {
    fill_from_start(world_, compute_.device(), *engine_, start_, inputs_, config_, log_);
  } else {
    saved_step = resume(refused);
  }
  start_.run_text = with_decisions(start_.run_text, decisions);
  const std::string placement =
      placement_note(engine_->groups(), engine_->options().precision, world_.topology().node_of_rank);
  if (!placement.empty()) start_.run_text = with_note(start_.run_text, "run.placement", placement);
  if (const auto change = change_of_placement(start_.placement, placement);
      !begins && !change.empty() && config_.fsdp.sum_order != fsdp::SumOrder::tree)
    log_.info("changed since step {}: {}", saved_step, change);
  total_steps_ = total_steps(config_, state_);
  schedule_ = schedule_of(config_, total_steps_);
  const Saver::Run run{world_,
                       compute_.device(),
                       *engine_,
                       config_,
                       checkpoint_texts(),
                       texts_.name_of,
                       record_,
                       log_,
                       stopping_,
                       *room_,
                       side_work_,
                       [this](const auto&... of_save) { journal_.saved(of_save...); },
                       [this] { return journal_.metrics(); }};
  saver_ = std::make_unique<Saver>(run, saved_step, std::move(refused));
}

/// Before weights are read, which takes a while.
void Trainer::look_for_room(const std::vector<checkpoint::Refused>& refused) {
  std::vector<fs::path> damaged;
  for (const auto& file : refused) damaged.push_back(file.file);
  const fs::path fallback = comm::from_rank_0(world_, [&] { return fallback_folder(config_); });
  room_ = std::make_unique<Room>(
      config_,
      // Also where weights are saved: when the run is told to stop, all of its state is.
      checkpoint::checkpoint_bytes(tensors_to_save(*engine_, CheckpointContent::all), checkpoint_texts(),
                                   file_settings(config_)),
      fallback, damaged);
  comm::on_rank_0(world_, [&] { require_room(*room_, log_); });
}

checkpoint::CheckpointTexts Trainer::checkpoint_texts() const {
  return {inputs_.llama.json, start_.run_text, inputs_.train_file->notes().chat_template,
          adapter_text_of(inputs_, config_)};
}

void Trainer::open_run_folder() {
  owes_evaluation_ = comm::from_rank_0(world_, [&] {
    const bool ends_with_step =
        journal_.open_folder(start_.run_text, report_->job_start(state_.step, total_steps_));
    if (!choices_.products.empty()) keep_choices(room_->folder() / kChoicesFile, choices_, log_);
    const auto problem = room_->problem_at_the_end({state_.step, total_steps_, config_.checkpoint.every});
    if (problem) log_.warning("{}", *problem);
    return ends_with_step;
  });
  journal_.begin(state_.step, total_steps_);
  stopping_.forget_last_stop();
  owes_evaluation_ = owes_evaluation_ && due(config_.train.eval_every, state_.step);
}

Outcome Trainer::run(const Complain& complain) {
  record_.set_phase("starts");
  if (config_.run.watchdog_seconds > 0) {
    const health::WatchdogOptions options{config_.run.watchdog_seconds, config_.run.dir, side_work_,
                                          complain};
    watchdog_ = std::make_unique<health::Watchdog>(world_, record_, options, log_);
  }
  Outcome outcome{};
  const auto error = comm::common_failure([&] { outcome = run_watched(); });
  finish_what_is_saved();
  journal_.end(state_.step, error ? "failed" : outcome == Outcome::done ? "done" : "stopped");
  if (error) {
    if (watchdog_) watchdog_->leave();
    std::rethrow_exception(error);
  }
  const health::FlightScope scope(record_, {"end of the run"});
  if (watchdog_) watchdog_->finish();
  return outcome;
}

/// A save under way comes to its end, whatever has become of training.
void Trainer::finish_what_is_saved() {
  if (!saver_) return;
  static_cast<void>(comm::common_failure([&] { saver_->finish(); }));
}

/// Else steps that bring a new kind of micro-batch would take longer.
void Trainer::prepare_for_documents() {
  if (!inputs_.packs_documents()) return;
  const double begin = steady_seconds();
  engine_->prepare_for_documents();
  if (compute_.on_gpu()) log_.info("packed documents: prepared in {:.1f} s", steady_seconds() - begin);
}

/// False where this job is told to stop while another one has the folder.
bool Trainer::take_folder() {
  struct ToldToStop {};
  const auto patience =
      kLockSeconds + guessed_seconds_to_save(config_, *inputs_.model, world_.topology().nodes);
  const auto wait = [this] {
    record_.act("waiting for the run folder");
    if (take_stop_request()) throw ToldToStop();
  };
  return comm::from_rank_0(world_, [&] {
    try {
      journal_.keep(std::make_unique<RunFolder>(config_.run.dir, log_, patience, wait));
      return true;
    } catch (const ToldToStop&) {
      return false;
    }
  });
}

Outcome Trainer::run_watched() {
  const std::string model = comm::from_rank_0(world_, [&] { return model_of_begun_run(config_, log_); });
  comm::agree(world_, [&] {
    inputs_ = open_inputs(config_, world_.size(), model);
    state_ = inputs_.fresh;
  });
  if (!take_folder()) {  // before it is looked for what to continue from
    log_.info("stopped while waiting for {}, which is as it was; run the same command again to continue",
              config_.run.dir);
    return Outcome::stopped;
  }
  comm::on_rank_0(world_, [&] { journal_.open_prometheus(); });
  std::vector<checkpoint::Refused> refused;
  start_ = choose_start(world_, config_, texts_, inputs_, refused, log_);
  if (start_.finished) return Outcome::done;
  if (!start_.weights.empty()) {
    comm::agree(world_, [&] {
      check_same_model(inputs_.llama, config_.model.config, config_of_start(start_), start_.weights.string(),
                       "give the model.config that belongs to the weights");
    });
  }
  compute_ = open_compute_of_run(world_, config_, texts_.name_of, log_);
  auto [engine, decisions] = build_engine(world_, compute_, inputs_, config_, start_.run_text, log_);
  engine_ = std::move(engine);
  engine_->keep_record(record_);
  look_for_room(refused);
  choices_ = make_choices(world_, *engine_, compute_.device(), choice_sources(config_, start_.checkpoint),
                          config_, log_);
  prepare_for_documents();
  fill_engine(std::move(refused), decisions);
  report_ = std::make_unique<RunReport>(world_, config_, inputs_, compute_, *engine_, log_);
  open_run_folder();
  if (config_.log.trace && config_.log.trace->first > total_steps_)
    log_.warning("log.trace begins at step {}, after the last step {}: there will be no trace",
                 config_.log.trace->first, total_steps_);
  report_->describe(total_steps_);
  if (!resumed_from_.empty()) log_.info("resumed from {} at step {}", resumed_from_.string(), state_.step);
  warn_of_zero_learning_rate(schedule_, state_.step + 1, log_);
  return loop();
}

/// Within a step or an evaluation. Collective.
bool Trainer::all_told_to_stop() {
  StopVotes votes = tally_.own(seconds_to_go_on(1, 0));
  const health::FlightScope scope(record_, {"agreement on stopping"});
  comm::sum_members(world_, votes);
  return tally_.hear(votes);
}

/// Shorter steps are run to their end: what ranks tell each other during one is known after it. After SIGTERM, mpirun kills
/// the ranks within seconds.
constexpr double kLongStepSeconds = 0.5;

/// The same on all ranks. How long the first step takes, nobody knows.
bool Trainer::steps_are_long() const {
  return slowest_step_seconds_ <= 0 || slowest_step_seconds_ >= kLongStepSeconds;
}

/// Until the run could stop the next time: after these steps, the evaluations that are due after them, and a save.
double Trainer::seconds_to_go_on(int steps, double step_seconds) const {
  if (config_.run.max_hours <= 0) return 0;  // nobody asks
  double seconds = (saver_->is_under_way() ? 3 : 2) * saver_->seconds_to_save_all();
  for (int i = 1; i <= steps; ++i)
    seconds +=
        1.5 * step_seconds + (due(config_.train.eval_every, state_.step + i) ? evaluation_seconds_ : 0);
  return seconds;
}

Outcome Trainer::stop() {
  if (unreported_) {
    start_agreement({}, 0);
    finish_agreement();
  }
  const bool idle = state_.step < first_step_;
  if (!idle) save(CheckpointContent::all);  // so that it can continue
  traces_.write();
  stopping_.put_file_aside(log_);
  if (idle && stopping_.reason() == StopReason::max_hours) {
    log_.warning(
        "no step fitted into run.max_hours = {} ({:.1f} s): the start took {:.1f} s, and {:.1f} s are kept "
        "for an evaluation that is due and to save; allow more",
        config_.run.max_hours, config_.run.max_hours * 3600, stopping_.seconds_since_start(),
        seconds_to_go_on(1, 0));
  }
  log_.info("stopped after step {} {}; run the same command again to continue", state_.step,
            stopping_.text());
  return Outcome::stopped;
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
  comm::agree(world_, [&] {
    if (failure_) std::rethrow_exception(failure_);
  });
}

Outcome Trainer::loop() {
  std::vector<std::int64_t> numbers;
  const auto shape = fsdp::step_shape(engine_->options(), engine_->groups());
  for (int m = 0; m < shape.per_rank; ++m)
    numbers.push_back(fsdp::micro_batch_number(shape, engine_->groups(), world_.rank(), m));
  data::Loader loader(*inputs_.train_file, inputs_.batch_options, *inputs_.sampler, std::move(numbers));
  first_step_ = state_.step + 1;
  engine_->ask_before_micro_batches([&] { return steps_are_long() && all_told_to_stop(); });
  if (owes_evaluation_ && !evaluate_now()) return stop();
  if (state_.step == total_steps_) return finish();
  // Before the first step there is none during which the ranks could tell each other.
  record_.set_phase("starts");
  record_.act("reading the data");
  std::vector<device::HostBatch> batches;
  attempt([&] { batches = loader.next(data_steps(state_) + 1); });
  start_agreement(batches, seconds_to_go_on(1, 0));
  finish_agreement();
  double last_seconds = 0;
  while (state_.step < total_steps_) {
    const double begin = steady_seconds(), waited = record_.waited_seconds();
    if (some_failed_) {
      if (!failure_) failure_ = data_failure_;
      finish_saving();  // a save that failed there fails here
      settle();
    }
    if (tally_.stops()) return stop();
    record_.set_phase(state_.step < first_step_ ? "starts" : nullptr);
    record_.begin_step(state_.step + 1);
    record_.act("reading the data");
    std::vector<device::HostBatch> next_batches;
    try {
      if (state_.step + 1 < total_steps_) next_batches = loader.next(data_steps(state_) + 2);
    } catch (...) {
      data_failure_ = std::current_exception();  // this step still has its data
    }
    notice_save();
    const double data_seconds = steady_seconds() - begin;

    const fsdp::StepInputs inputs = next_inputs_;
    start_agreement(next_batches, seconds_to_go_on(2, last_seconds));
    auto step = one_step(state_.step + 1, batches, inputs);
    finish_agreement();
    if (aborted_) return stop();
    StepMetrics& metrics = step.metrics;
    metrics.data_seconds = data_seconds;
    metrics.step_seconds = last_seconds = steady_seconds() - begin;
    metrics.tokens_per_second =
        static_cast<double>(config_.train.global_batch * config_.data.seq_len) / last_seconds;
    metrics.tokens_per_second_per_rank = metrics.tokens_per_second / world_.size();
    metrics.mfu = report_->mfu(metrics.tokens_per_second_per_rank);
    metrics.checkpoint_stall_seconds = saver_->take_stall_seconds();
    metrics.time = unix_seconds();
    step.busy_seconds = last_seconds - (record_.waited_seconds() - waited);
    unreported_ = step;
    if (must_know_now(metrics)) {
      start_agreement(next_batches, seconds_to_go_on(1, last_seconds));
      finish_agreement();
    }
    batches = std::move(next_batches);
    if (state_.step == first_step_) {
      report_->describe_device();
      report_choices(compute_.device(), log_);
    }
    if (state_.step == first_step_ + 1)
      warn_of_unsaved_run(config_, last_seconds, total_steps_ - state_.step, log_);
    if (due(config_.run.verify_replicas_every, state_.step)) compare_replicas();
    if (due(config_.train.eval_every, state_.step)) {
      const bool aborted = tally_.stops() && state_.step < total_steps_;
      if (aborted || !evaluate_now()) return stop();
    }
    if (state_.step == total_steps_) {
      save(config_.checkpoint.content);
    } else if (!tally_.stops() && due(config_.checkpoint.every, state_.step)) {  // else all is saved at once
      start_saving();
    }
  }
  return finish();
}

Outcome Trainer::finish() {
  stopping_.remove_file(log_);
  traces_.write();
  return Outcome::done;
}

/// Sends the facts of this rank to all others while the next step runs; finish_agreement() is next.
void Trainer::start_agreement(std::span<const device::HostBatch> next_batches, double seconds_to_go_on) {
  StepFacts own;
  for (const auto& batch : next_batches) own.valid_labels += batch.valid_labels;
  own.segments = device::most_segments(next_batches);
  own.failed_ranks = failure_ || data_failure_ ? 1 : 0;
  own.stop = tally_.own(seconds_to_go_on);
  if (unreported_) {
    own.losses = unreported_->losses;
    own.fp8 = unreported_->fp8;
    own.step_microseconds = std::llround(unreported_->metrics.step_seconds * 1e6);
    own.planned_and_used = report_->memory_bytes();
    own.gpu_process = report_->gpu_process_bytes();
    if (!compute_.on_gpu()) {  // there the host does not know what the device waits for
      own.busiest = RankTime(unreported_->busy_seconds, world_.rank());
      own.busy_microseconds = std::llround(unreported_->busy_seconds * 1e6);
    }
  }
  agreement_.start(own);
}

/// Takes the facts of all ranks from start_agreement(), and what follows from it for the step that was unreported then.
void Trainer::finish_agreement() {
  StepFacts of_all;
  {
    const health::FlightScope scope(record_, {"agreement on the step"});
    of_all = agreement_.take();
  }
  next_inputs_ = {.valid_labels = of_all.valid_labels, .segments = of_all.segments};
  some_failed_ = of_all.failed_ranks > 0;
  tally_.hear(of_all.stop);
  report_last_step(of_all);
}

/// The one of which this rank told the others its losses.
void Trainer::report_last_step(const StepFacts& of_all) {
  if (!unreported_) return;
  UnreportedStep step = *std::exchange(unreported_, std::nullopt);
  StepMetrics& metrics = step.metrics;
  if (metrics.tokens > 0) slowest_step_seconds_ = 1e-6 * static_cast<double>(of_all.step_microseconds);
  if (metrics.tokens > 0) metrics.loss = of_all.losses.value() / static_cast<double>(metrics.tokens);
  if (metrics.tokens > 0 && config_.fsdp.product_dtype == ProductDtype::fp8) note_fp8(metrics, of_all.fp8);
  metrics.memory_bytes = of_all.planned_and_used;
  metrics.gpu_process_bytes = of_all.gpu_process;
  if (of_all.busiest.number > 0 && world_.size() > 1) {
    const double mean = 1e-6 * static_cast<double>(of_all.busy_microseconds) / world_.size();
    metrics.slowest = SlowestRank{of_all.busiest.rank(), of_all.busiest.seconds(), mean};
  }
  record_.act("reporting the step");
  attempt([&] { journal_.write(metrics); });
  if (world_.rank() == 0) {
    if (const auto problem = room_->new_problem(steady_seconds())) log_.warning("{}", *problem);
  }
  journal_.show(metrics);
  check_finite(step);
}

/// Whether something follows that needs the losses of all ranks, or what they have to say.
bool Trainer::must_know_now(const StepMetrics& metrics) const {
  return state_.step == first_step_ || state_.step == total_steps_ || !std::isfinite(metrics.grad_norm) ||
         due(config_.run.verify_replicas_every, state_.step) || due(config_.train.eval_every, state_.step) ||
         due(config_.checkpoint.every, state_.step);
}

/// A step that is not finite ends the run, or was left out.
void Trainer::check_finite(const UnreportedStep& step) {
  const StepMetrics& metrics = step.metrics;
  if (std::isfinite(metrics.loss) && (std::isfinite(metrics.grad_norm) || step.scaled_down))
    return not_finite_.finite();
  const health::FlightPhase phase(record_, "looks for what is not finite");
  const std::string where = find_not_finite(world_, compute_.device(), *engine_, step.own_loss);
  if (const auto reason = not_finite_.not_finite(metrics, where)) fail(*reason);
}

/// A file that is saved takes a part of each replica: it is whole, and wrong, if these are not equal.
void Trainer::compare_replicas() {
  if (config_.run.verify_replicas_every == 0 || compared_step_ == state_.step) return;
  const health::FlightPhase phase(record_, "compares replicas");
  const std::string difference = find_differing_replicas(world_, compute_.device(), *engine_);
  if (!difference.empty()) fail(fmt::format("after step {}, {}", state_.step, difference));
  compared_step_ = state_.step;
}

/// Ends the run, once a save under way has come to its end. On all ranks.
void Trainer::fail(const std::string& reason) {
  finish_saving();
  settle();
  const std::int64_t saved = saver_->saved_step();
  throw comm::CommonError(fmt::format(
      "{}; {}", reason,
      saved < 0 ? "there is no checkpoint yet" : fmt::format("the newest checkpoint is of step {}", saved)));
}

/// All but what only all ranks together know.
UnreportedStep Trainer::one_step(std::int64_t step, std::span<const device::HostBatch> batches,
                                 fsdp::StepInputs inputs) {
  UnreportedStep done;
  StepMetrics& metrics = done.metrics;
  metrics.step = step;
  metrics.lr = schedule_.at(step);
  metrics.tokens = inputs.valid_labels;
  if (inputs.valid_labels > 0) {
    engine_->observe(traces_.observer(*engine_, step));
    inputs.learning_rate = metrics.lr;
    inputs.optimizer_step = state_.optimizer_steps + 1;
    if (scales_loss(config_)) inputs.loss_scale = metrics.loss_scale = state_.loss_scale;
    const auto result = engine_->step(batches, inputs);
    engine_->observe({});  // evaluations are not part of it
    if ((aborted_ = result.aborted)) return done;
    done.own_loss = result.loss_sum;
    for (const double loss : result.loss_sums) done.losses.add(loss);
    done.fp8 = result.fp8;
    metrics.grad_norm = result.grad_norm;
    if (std::isfinite(result.grad_norm)) ++state_.optimizer_steps;
    if (scales_loss(config_)) scale_loss(step, !std::isfinite(result.grad_norm));
    if (step == first_step_) {
      report_->describe_memory();
      journal_.memory(report_->used_bytes());
    }
  } else {
    log_.warning("step {} has no valid labels: loss 0, no update", step);
  }
  state_.step = step;
  state_.tokens_seen += inputs.valid_labels;
  state_.samples_consumed += config_.train.global_batch;
  state_.epoch = data_epoch(state_);
  metrics.tokens_seen = state_.tokens_seen;
  done.scaled_down = scales_loss(config_) && state_.loss_scale >= 1;
  return done;
}

/// Nothing of it ends a run by itself; the first time is told, and metrics.jsonl has every step.
void Trainer::note_fp8(StepMetrics& metrics, const device::Fp8Counts& counts) {
  metrics.fp8 = counts;
  if ((counts.saturated == 0 && counts.zero_scales == 0) || warned_of_fp8_) return;
  warned_of_fp8_ = true;
  log_.warning(
      "step {}: casts to FP8 met {} and {} with only zeros (as gradients of a micro-batch without "
      "labels are); metrics.jsonl has the counts of each step: fp8_saturated, fp8_zero_scale",
      metrics.step, count(counts.saturated, "infinite number"), count(counts.zero_scales, "tensor"));
}

/// The gradient norm is the same on all ranks, so all leave a step out together.
void Trainer::scale_loss(std::int64_t step, bool overflow) {
  optim::LossScaler scaler{state_.loss_scale, state_.loss_scale_good_steps};
  scaler.update(overflow);
  if (overflow) {
    log_.info("step {} is skipped: a gradient overflowed with loss scale {}; the next step has {}", step,
              state_.loss_scale, scaler.scale);
  }
  state_.loss_scale = scaler.scale;
  state_.loss_scale_good_steps = scaler.good_steps;
}

/// False if it was aborted, to stop. The next run begins with it then.
bool Trainer::evaluate_now() {
  const health::FlightPhase phase(record_, "evaluates");
  const double begin = steady_seconds();
  const auto done = evaluate_file(world_, *engine_, *inputs_.eval_file, inputs_.batch_options,
                                  [&] { return state_.step < total_steps_ && all_told_to_stop(); });
  if (!done) return false;
  const auto& result = *done;
  evaluation_seconds_ = std::max(evaluation_seconds_, steady_seconds() - begin);
  if (result.tokens == 0) log_.warning("{} has no valid labels, so it has no loss", config_.data.eval);
  log_.info("step {}  eval loss {:.4f}  perplexity {:.2f}  over {}", state_.step, result.loss,
            result.perplexity, count(result.tokens, "token"));
  attempt([&] { journal_.evaluation(state_.step, result.loss); });
  return true;
}

void Trainer::settle_before_saving() {
  const health::FlightPhase phase(record_, "gets ready to save");
  finish_saving();
  settle();
  compare_replicas();
}

void Trainer::save(CheckpointContent content) {
  settle_before_saving();
  saver_->save(state_, content);
}

void Trainer::start_saving() {
  settle_before_saving();
  saver_->start(state_);
}

/// A failure of this rank alone is not kept: the saves of other ranks wait for this one.
void Trainer::finish_saving() {
  if (!failure_) failure_ = comm::common_failure([&] { saver_->finish(); });
}

/// Looks whether the save under way has come to its end. This rank may be the first to see it.
void Trainer::notice_save() {
  if (saver_->is_done()) finish_saving();
}

void Trainer::abandon_save() {
  if (!saver_ || !saver_->abandon()) return;
  // The thread that saves still reads the engine's snapshot, which is memory of this device.
  leak(std::move(engine_));
  leak(std::move(compute_));
}

}  // namespace

Outcome train(comm::World& world, const Config& config, const ConfigTexts& texts, const Log& log,
              const std::function<void(const std::string& summary)>& complain) {
  Trainer trainer(world, config, texts, log);
  try {
    return trainer.run(complain);
  } catch (const UserError&) {
    throw;  // on all ranks: a save under way comes to its end
  } catch (const comm::CommonError&) {
    throw;
  } catch (...) {
    trainer.abandon_save();
    throw;
  }
}

}  // namespace llampi::train
