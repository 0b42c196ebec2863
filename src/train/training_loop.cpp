// SPDX-License-Identifier: Apache-2.0
#include "train/training_loop.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/text.hpp"
#include "llampi/optim/loss_scaler.hpp"
#include "llampi/train/evaluate.hpp"
#include "train/data_position.hpp"
#include "train/engine_config.hpp"
#include "train/failure_message.hpp"
#include "train/run_warnings.hpp"
#include "train/tuning.hpp"

namespace llampi::train {
namespace {

/// Shorter steps are run to their end: what ranks tell each other during one is known after it. After SIGTERM, mpirun kills
/// the ranks within seconds.
constexpr double kLongStepSeconds = 0.5;

}  // namespace

Outcome TrainingLoop::train() {
  Outcome outcome{};
  const auto failure = comm::common_failure([&] { outcome = run_steps(); });
  traces_.write();
  if (failure) std::rethrow_exception(failure);
  return outcome;
}

Outcome TrainingLoop::run_steps() {
  data::Loader loader = run_.open_loader();
  first_step_ = run_.state.step + 1;
  run_.engine->ask_before_micro_batches([&] { return steps_are_long() && all_told_to_stop(); });
  if (run_.owes_evaluation && !evaluate_now()) return stop();
  if (run_.state.step == run_.total_steps) return finish();
  Batches batches = first_batches(loader);
  while (run_.state.step < run_.total_steps) {
    if (some_failed_) throw_failures();
    if (tally_.stops()) return stop();
    Batches next;
    if (!step(batches, loader, next)) return stop();
    batches = std::move(next);
    if (!do_what_is_due()) return stop();
  }
  return finish();
}

/// Of the first step, before which there is none during which the ranks could tell each other.
TrainingLoop::Batches TrainingLoop::first_batches(data::Loader& loader) {
  run_.record.set_phase("starts");
  run_.record.act("reading the data");
  Batches batches;
  failure_.of([&] { batches = loader.next(data_steps(run_.state) + 1); });
  start_agreement(batches, seconds_to_go_on(1, 0));
  finish_agreement();
  return batches;
}

/// Of the step after the one that is about to run, which has its own; none after the last.
TrainingLoop::Batches TrainingLoop::next_batches(data::Loader& loader) {
  run_.record.act("reading the data");
  Batches batches;
  data_failure_.of([&] {
    if (run_.state.step + 1 < run_.total_steps) batches = loader.next(data_steps(run_.state) + 2);
  });
  return batches;
}

/// The next step, of `batches`. Meanwhile the ranks tell each other what they know of the last one and of `next`, the
/// batches after these. False if it was aborted, to stop.
bool TrainingLoop::step(const Batches& batches, data::Loader& loader, Batches& next) {
  const double begin = steady_seconds(), waited = run_.record.waited_seconds();
  const std::int64_t number = run_.state.step + 1;
  run_.record.set_phase(number == first_step_ ? "starts" : nullptr);
  run_.record.begin_step(number);
  next = next_batches(loader);
  saves_.notice();
  const double data_seconds = steady_seconds() - begin;

  const fsdp::StepInputs inputs = next_inputs_;
  start_agreement(next, seconds_to_go_on(2, last_seconds_));
  auto done = compute_step(number, batches, inputs);
  finish_agreement();
  if (!done) return false;

  last_seconds_ = steady_seconds() - begin;
  done->busy_seconds = last_seconds_ - (run_.record.waited_seconds() - waited);
  StepMetrics& metrics = done->metrics;
  metrics.data_seconds = data_seconds;
  metrics.step_seconds = last_seconds_;
  const auto tokens = static_cast<double>(run_.config.train.global_batch * run_.config.data.seq_len);
  metrics.tokens_per_second =
      metrics.tokens > 0 ? tokens / last_seconds_ : 0;  // without labels nothing is computed
  metrics.tokens_per_second_per_rank = metrics.tokens_per_second / run_.world.size();
  metrics.mfu =
      run_.report->mfu(metrics.tokens_per_second_per_rank, static_cast<double>(metrics.tokens) / tokens);
  metrics.checkpoint_stall_seconds = run_.saver->take_stall_seconds();
  metrics.time = unix_seconds();
  const bool now = must_know_now(metrics);
  unreported_ = done;
  if (now) {
    start_agreement(next, seconds_to_go_on(1, last_seconds_));
    finish_agreement();
  }
  return true;
}

/// After a step. False where the run stops instead.
bool TrainingLoop::do_what_is_due() {
  const Config& config = run_.config;
  const std::int64_t step = run_.state.step;
  if (step == first_step_) {
    run_.report->describe_device();
    report_choices(run_.compute.device(), run_.log);
  }
  run_.report->describe_graphs();
  if (step == first_step_ + 1) warn_of_unsaved_run(config, last_seconds_, run_.total_steps - step, run_.log);
  if (run_.due(config.run.verify_replicas_every, step)) saves_.compare_replicas();
  const bool is_last = step == run_.total_steps;
  if (is_last) {
    saves_.save(config.checkpoint.content);
  } else if (!tally_.stops() &&
             (saves_.owes() || run_.due(config.checkpoint.every, step))) {  // else all is saved at once
    saves_.start();
  }
  // Whatever becomes of the evaluation, what was due is saved.
  if (!run_.due(config.train.eval_every, step)) return true;
  if (!is_last) return !tally_.stops() && evaluate_now();
  tally_.forget_max_hours();  // of it, time was kept to save
  if (tally_.stops() || !evaluate_now()) warn_of_no_evaluation(run_);
  return true;
}

Outcome TrainingLoop::finish() {
  run_.journal.finish();
  run_.stopping.remove_file(run_.log);
  return Outcome::done;
}

/// All of it but what only all ranks together know. None if it was aborted, to stop.
std::optional<TrainingLoop::UnreportedStep> TrainingLoop::compute_step(std::int64_t step,
                                                                       const Batches& batches,
                                                                       fsdp::StepInputs inputs) {
  UnreportedStep done;
  StepMetrics& metrics = done.metrics;
  metrics.step = step;
  metrics.lr = run_.schedule.at(step);
  metrics.tokens = inputs.valid_labels;
  if (inputs.valid_labels > 0) {
    run_.engine->observe(traces_.observer(*run_.engine, step));
    inputs.learning_rate = metrics.lr;
    inputs.optimizer_step = run_.state.optimizer_steps + 1;
    if (scales_loss(run_.config)) inputs.loss_scale = metrics.loss_scale = run_.state.loss_scale;
    const auto result = run_.engine->step(batches, inputs);
    run_.engine->observe({});  // evaluations are not part of it
    if (result.aborted) return std::nullopt;
    done.own_loss = result.loss_sum;
    for (const double loss : result.loss_sums) done.losses.add(loss);
    done.fp8 = result.fp8;
    metrics.grad_norm = result.grad_norm;
    if (std::isfinite(result.grad_norm)) ++run_.state.optimizer_steps;
    if (scales_loss(run_.config)) scale_loss(step, !std::isfinite(result.grad_norm));
    if (!std::exchange(has_described_memory_, true)) {
      run_.report->describe_memory();
      run_.journal.memory(run_.report->used_bytes());
    }
  } else {
    run_.log.warning("step {} has no valid labels: loss 0, no update", step);
  }
  run_.state.step = step;
  run_.state.tokens_seen += inputs.valid_labels;
  run_.state.samples_consumed += run_.config.train.global_batch;
  run_.state.epoch = data_epoch(run_.state);
  metrics.tokens_seen = run_.state.tokens_seen;
  done.scaled_down = scales_loss(run_.config) && run_.state.loss_scale >= 1;
  return done;
}

Outcome TrainingLoop::stop() {
  report_unreported_step();
  const bool idle = run_.state.step < first_step_;
  std::exception_ptr failure;
  if (!idle)
    failure = comm::common_failure([&] { saves_.save(CheckpointContent::all); });  // so that it can continue
  run_.stopping.put_file_aside(run_.log);  // else it would stop the next job, too
  if (failure) std::rethrow_exception(failure);
  if (idle && run_.stopping.reason() == StopReason::max_hours) {
    run_.log.warning(
        "run.max_hours = {} ({:.1f} s) left no time for a step: the start{} took {:.1f} s, and {:.1f} s are reserved {}to save; "
        "increase it",
        run_.config.run.max_hours, run_.config.run.max_hours * 3600,
        run_.owes_evaluation
            ? fmt::format(" and the evaluation of step {}, which the last job did not finish,",
                          run_.state.step)
            : "",
        run_.stopping.seconds_since_start(), seconds_to_go_on(1, 0),
        run_.due(run_.config.train.eval_every, run_.state.step + 1) ? "for an evaluation that is due and "
                                                                    : "");
  }
  run_.log.info("stopped after step {} {}; run the same command {} to continue", run_.state.step,
                run_.stopping.text(),
                run_.config.run.resume.continues_own() ? "again" : "with run.resume = auto");
  return Outcome::stopped;
}

void TrainingLoop::report_unreported_step() {
  if (!unreported_) return;
  start_agreement({}, 0);
  finish_agreement();
}

/// Within a step or an evaluation. Collective.
bool TrainingLoop::all_told_to_stop() {
  StopVotes votes = tally_.own(seconds_to_go_on(1, 0));
  const health::FlightScope scope(run_.record, {"agreement on stopping"});
  comm::sum_members(run_.world, votes);
  return tally_.hear(votes);
}

/// The same on all ranks. How long the first step takes, nobody knows.
bool TrainingLoop::steps_are_long() const {
  return slowest_step_seconds_ <= 0 || slowest_step_seconds_ >= kLongStepSeconds;
}

/// Until the run could stop the next time: after these steps, the evaluations that are due after them, and a save.
double TrainingLoop::seconds_to_go_on(int steps, double step_seconds) const {
  if (run_.config.run.max_hours <= 0 || run_.state.step == run_.total_steps)
    return 0;  // nobody asks; nothing is left to do
  double seconds =
      (run_.saver->is_under_way() || saves_.saves_again() ? 3 : 2) * run_.saver->seconds_to_save_all();
  for (int i = 1; i <= steps; ++i)
    seconds += 1.5 * step_seconds +
               (run_.due(run_.config.train.eval_every, run_.state.step + i) ? evaluation_seconds_ : 0);
  return seconds;
}

/// Sends the facts of this rank to all others while the next step runs; finish_agreement() is next.
void TrainingLoop::start_agreement(const Batches& next_batches, double seconds_to_go_on) {
  StepFacts own;
  for (const auto& batch : next_batches) own.valid_labels += batch.valid_labels;
  own.counts = device::largest_counts(next_batches);
  own.failed_ranks = failure_ || data_failure_ || saves_.has_failed() ? 1 : 0;
  own.stop = tally_.own(seconds_to_go_on);
  if (unreported_) {
    own.losses = unreported_->losses;
    own.fp8 = unreported_->fp8;
    own.step_microseconds = std::llround(unreported_->metrics.step_seconds * 1e6);
    own.memory_bytes = run_.report->memory_bytes();
    own.gpu_process = run_.report->gpu_process_bytes();
    if (!run_.compute.on_gpu()) {  // there the host does not know what the device waits for
      own.busiest = RankTime(unreported_->busy_seconds, run_.world.rank());
      own.busy_microseconds = std::llround(unreported_->busy_seconds * 1e6);
    }
  }
  agreement_.start(own);
}

/// Takes the facts of all ranks from start_agreement(), and what follows from it for the step that was unreported then.
void TrainingLoop::finish_agreement() {
  StepFacts of_all;
  {
    const health::FlightScope scope(run_.record, {"agreement on the step"});
    of_all = agreement_.take();
  }
  next_inputs_ = {.valid_labels = of_all.valid_labels, .counts = of_all.counts};
  some_failed_ = of_all.failed_ranks > 0;
  tally_.hear(of_all.stop);
  report_last_step(of_all);
}

/// The one of which this rank told the others its losses.
void TrainingLoop::report_last_step(const StepFacts& of_all) {
  if (!unreported_) return;
  UnreportedStep step = *std::exchange(unreported_, std::nullopt);
  StepMetrics& metrics = step.metrics;
  if (metrics.tokens > 0) slowest_step_seconds_ = 1e-6 * static_cast<double>(of_all.step_microseconds);
  give_steps_time(metrics.step);
  if (metrics.tokens > 0) metrics.loss = of_all.losses.value() / static_cast<double>(metrics.tokens);
  if (metrics.tokens > 0 && run_.config.fsdp.product_dtype == ProductDtype::fp8)
    note_fp8(metrics, of_all.fp8);
  metrics.memory_bytes = of_all.memory_bytes;
  metrics.gpu_process_bytes = of_all.gpu_process;
  if (of_all.busiest.number > 0 && run_.world.size() > 1) {
    const double mean = 1e-6 * static_cast<double>(of_all.busy_microseconds) / run_.world.size();
    metrics.slowest = SlowestRank{of_all.busiest.rank(), of_all.busiest.seconds(), mean};
  }
  run_.record.act("reporting the step");
  run_.journal.write(metrics);
  if (run_.world.rank() == 0 &&
      !run_.saver->is_under_way()) {  // which takes room, and frees some when it is done
    if (const auto problem = run_.room->new_problem(steady_seconds())) run_.log.warning("{}", *problem);
  }
  run_.record.act("printing the step (is the output read?)");  // a pager or Ctrl-S may hold it up
  run_.journal.show(metrics);
  check_finite(step);
}

/// A GPU shows nothing of a step until its end, least of all of a replayed one: after a long step, another one is no standstill.
void TrainingLoop::give_steps_time(std::int64_t step) {
  const double limit = run_.config.run.watchdog_seconds;
  if (run_.watchdog == nullptr || !run_.compute.on_gpu()) return;
  const bool is_long = 2 * slowest_step_seconds_ > limit;
  run_.watchdog->allow_steps_of(is_long ? 3 * slowest_step_seconds_ : 0);
  // The first step of a job does more than others.
  if (!is_long || step == first_step_ || std::exchange(has_warned_of_long_steps_, true)) return;
  run_.log.warning(
      "run.watchdog_seconds = {:g} is short for steps of {:.1f} s, during which a GPU shows no progress: the watchdog waits "
      "three times as long as the last step took",
      limit, slowest_step_seconds_);
}

/// Whether something follows that needs the losses of all ranks, or what they have to say.
bool TrainingLoop::must_know_now(const StepMetrics& metrics) const {
  return run_.state.step == first_step_ || run_.state.step == run_.total_steps ||
         !std::isfinite(metrics.grad_norm) || saves_.owes() ||
         run_.due(run_.config.run.verify_replicas_every, run_.state.step) ||
         run_.due(run_.config.train.eval_every, run_.state.step) ||
         run_.due(run_.config.checkpoint.every, run_.state.step);
}

/// A step that is not finite ends the run, or was left out.
void TrainingLoop::check_finite(const UnreportedStep& step) {
  const StepMetrics& metrics = step.metrics;
  if (metrics.tokens == 0) return;  // nothing was computed
  if (std::isfinite(metrics.loss) && (std::isfinite(metrics.grad_norm) || step.scaled_down))
    return not_finite_.finite();
  const health::FlightPhase phase(run_.record, "looks for what is not finite");
  const NotFinite found = find_not_finite(run_.world, run_.compute.device(), *run_.engine, step.own_loss);
  if (const auto reason = not_finite_.not_finite(metrics, found)) {
    run_.failure = "not_finite";
    saves_.fail(*reason);
  }
}

/// Nothing of it ends a run by itself; the first time is told, and metrics.jsonl has every step.
void TrainingLoop::note_fp8(StepMetrics& metrics, const device::Fp8Counts& counts) {
  metrics.fp8 = counts;
  if ((counts.saturated == 0 && counts.zero_scales == 0) || warned_of_fp8_) return;
  warned_of_fp8_ = true;
  run_.log.warning(
      "step {}: casts to FP8 met {} and {} with only zeros (as gradients of a micro-batch without "
      "labels are); metrics.jsonl has the counts of each step: fp8_saturated, fp8_zero_scale",
      metrics.step, count(counts.saturated, "infinite number"), count(counts.zero_scales, "tensor"));
}

/// The gradient norm is the same on all ranks, so all leave a step out together.
void TrainingLoop::scale_loss(std::int64_t step, bool overflow) {
  optim::LossScaler scaler{run_.state.loss_scale, run_.state.loss_scale_good_steps};
  scaler.update(overflow);
  if (overflow) {
    run_.log.info("step {} is skipped: a gradient overflowed with loss scale {}; the next step has {}", step,
                  run_.state.loss_scale, scaler.scale);
  }
  run_.state.loss_scale = scaler.scale;
  run_.state.loss_scale_good_steps = scaler.good_steps;
}

/// False if it was aborted, to stop. The next run begins with it then.
bool TrainingLoop::evaluate_now() {
  const health::FlightPhase phase(run_.record, "evaluates");
  const double begin = steady_seconds();
  const auto& files = run_.inputs.eval_files;
  std::vector<Evaluation> results;
  const auto failure = comm::common_failure([&] {
    for (const data::TokenFile& file : files) {
      const auto done = evaluate_file(run_.world, *run_.engine, file, run_.inputs.batch_options,
                                      [&] { return all_told_to_stop(); });
      if (!done) return;
      results.push_back(*done);
    }
  });
  if (failure) end_without_data(failure);
  if (results.size() < files.size()) return false;
  evaluation_seconds_ = std::max(evaluation_seconds_, steady_seconds() - begin);
  const auto tell = [&](const Evaluation& result, const std::string& of) {
    run_.log.info("step {}  eval loss {:.4f}  perplexity {:.2f}  over {}{}", run_.state.step, result.loss,
                  result.perplexity, count(result.tokens, "label"), of);
  };
  FileLosses losses;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string name = files[f].path().string();
    if (results[f].tokens == 0) run_.log.warning("{} has no valid labels, so it has no loss", name);
    if (files.size() == 1) break;
    tell(results[f], " of " + name);
    losses.emplace_back(name, results[f].loss);
  }
  const Evaluation all = over_all(results);
  tell(all, files.size() > 1 ? fmt::format(" of {}", count(std::ssize(files), "file")) : "");
  run_.journal.evaluation(run_.state.step, all.loss, losses);
  return true;
}

/// Once some rank has one: at the latest before the step whose data it has not.
void TrainingLoop::throw_failures() {
  saves_.settle();
  if (const auto failure = comm::common_failure([&] { data_failure_.agree(run_.world); }))
    end_without_data(failure);
  if (saves_.saves_again())
    run_.log.info("the state is saved again after the next step, and training waits for that");
}

/// All ranks have finished the same step, so its state is saved first, as by a stop; that of the last step is already. Collective.
void TrainingLoop::end_without_data(const std::exception_ptr& failure) {
  const std::string reason = message_of(failure, run_.texts.name_of);
  if (run_.state.step < run_.total_steps) {
    if (run_.state.step >= first_step_)
      run_.log.warning("{}; the run ends after saving the state of step {}", reason, run_.state.step);
    report_unreported_step();
    if (const auto second = comm::common_failure([&] { saves_.save(CheckpointContent::all); }))
      run_.log.warning("{}", message_of(second, run_.texts.name_of));
  } else {
    warn_of_no_evaluation(run_);
  }
  try {
    std::rethrow_exception(failure);
  } catch (const UserError&) {
    throw UserError(saves_.with_newest_checkpoint(reason));
  } catch (const comm::CommonError&) {
    throw comm::CommonError(saves_.with_newest_checkpoint(reason));
  }
}

}  // namespace llampi::train
