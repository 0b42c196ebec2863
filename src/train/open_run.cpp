// SPDX-License-Identifier: Apache-2.0
#include "train/open_run.hpp"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/train/run_checkpoints.hpp"
#include "llampi/train/run_text.hpp"
#include "llampi/train/stop.hpp"
#include "train/engine_config.hpp"
#include "train/metrics.hpp"
#include "train/placement_note.hpp"
#include "train/run_folder.hpp"
#include "train/run_warnings.hpp"
#include "train/shared_folder.hpp"
#include "train/tuning.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

/// How long another job may hold the run folder, in addition to one save: a job that was killed may need some time to exit, and
/// file servers keep the lock of a node that failed for a minute or two.
constexpr double kLockSeconds = 120;

void open_data(OpenRun& run) {
  const std::string model =
      comm::from_rank_0(run.world, [&] { return model_of_begun_run(run.config, run.log); });
  comm::agree_on_nodes(run.world, [&] { run.open_inputs(model); });
}

/// False where this job is told to stop while another one has the folder.
bool take_folder(OpenRun& run) {
  struct ToldToStop {};
  const auto patience =
      kLockSeconds + guessed_seconds_to_save(run.config, *run.inputs.model, run.world.topology().nodes);
  const auto wait = [&] {
    run.record.act("waiting for the run folder");
    if (take_stop_request()) throw ToldToStop();
  };
  run.holds_folder = comm::from_rank_0(run.world, [&] {
    try {
      run.journal.keep(std::make_unique<RunFolder>(run.config.run.dir, run.log, patience, wait));
      return true;
    } catch (const ToldToStop&) {
      return false;
    }
  });
  return run.holds_folder;
}

/// Before weights are read, which takes a while.
void look_for_room(OpenRun& run) {
  const fs::path fallback = comm::from_rank_0(run.world, [&] { return fallback_folder(run.config); });
  run.room = std::make_unique<Room>(
      run.config,
      // Also where weights are saved: when the run is told to stop, all of its state is.
      checkpoint::checkpoint_bytes(tensors_to_save(*run.engine, CheckpointContent::all),
                                   run.checkpoint_texts(), file_settings(run.config)),
      fallback);
  run.room->note_checkpoints(run.start.step, run.refused);
  comm::on_rank_0(run.world, [&] {
    if (!fallback.empty()) checkpoint::remove_unfinished_checkpoints(fallback);  // of a job that was killed
    require_room(*run.room, run.log);
  });
}

/// Else steps that bring a new kind of micro-batch would take longer.
void prepare_for_documents(OpenRun& run) {
  if (!run.inputs.packs_documents()) return;
  const double begin = steady_seconds();
  run.engine->prepare_for_documents();
  if (run.compute.on_gpu()) run.log.info("packed documents: prepared in {:.1f} s", steady_seconds() - begin);
}

/// Fills the engine from a checkpoint or, should that turn out to be damaged, the next older one that is
/// whole. Returns its step; -1 where the run begins.
std::int64_t fill_engine(OpenRun& run) {
  const bool begins = run.start.checkpoint.empty();
  const health::FlightPhase phase(run.record, begins ? "reads the weights" : "reads the checkpoint");
  for (;;) {
    try {
      return run.fill_engine();
    } catch (const checkpoint::DamagedCheckpoint& error) {  // on all ranks
      run.refused.push_back({run.start.checkpoint, error.problem()});
      run.log.warning("skipped a checkpoint: {}{}", error.problem(),
                      error.parts().where.empty() ? "" : fmt::format(" (seen by {})", error.parts().where));
    }
    run.choose_start();
  }
}

/// By which the last bits of sums may differ.
void note_placement(OpenRun& run, std::int64_t saved_step) {
  const std::string placement =
      placement_note(run.engine->mesh(), run.engine->options().precision, run.world.topology().node_of_rank);
  if (!placement.empty()) run.start.run_text = with_note(run.start.run_text, "run.placement", placement);
  if (saved_step < 0 || run.config.fsdp.sum_order == fsdp::SumOrder::tree) return;
  if (const auto change = change_of_placement(run.start.placement, placement); !change.empty())
    run.log.info("changed since step {}: {}", saved_step, change);
}

/// Not even where the disk is full does training depend on it.
void keep_choices_of_run(const OpenRun& run, const TunedRun& choices) {
  if (choices.products.empty()) return;
  try {
    keep_choices(run.room->folder() / kChoicesFile, choices, run.log);
  } catch (const Error& error) {
    run.log.warning(
        "a run that continues this one may choose other matrix-product algorithms, which changes last bits: {}",
        error.what());
  }
}

void open_folder(OpenRun& run, const TunedRun& choices) {
  run.owes_evaluation = comm::from_rank_0(run.world, [&] {
    const bool ends_with_step =
        run.journal.open_folder(run.start.run_text, run.report->job_start(run.state.step, run.total_steps));
    keep_choices_of_run(run, choices);
    const auto problem =
        run.room->problem_at_the_end({run.state.step, run.total_steps, run.config.checkpoint.every});
    if (problem) run.log.warning("{}", *problem);
    return ends_with_step;
  });
  require_shared_folder(run.world, run.room->folder(), run.config.run.dir,
                        [&] { run.record.act("looking for the run folder"); });
  run.journal.begin(run.state.step, run.total_steps);
  run.stopping.forget_last_stop();
  run.owes_evaluation = run.owes_evaluation && run.due(run.config.train.eval_every, run.state.step);
}

/// What the job that finished the run had no room for, or did not see any more.
void tidy_finished_run(OpenRun& run) {
  const bool owes_evaluation = comm::from_rank_0(run.world, [&] {
    run.journal.restore_metrics(run.start.step);
    if (run.config.train.eval_every == 0 || !run.start.complete) return false;
    try {
      return last_trained_step_in(std::filesystem::path(run.config.run.dir) / "metrics.jsonl") ==
             run.start.step;
    } catch (const Error&) {  // it cannot be read now
      return false;
    }
  });
  if (owes_evaluation) warn_of_no_evaluation(run);
  run.stopping.remove_file(run.log);
}

void describe(OpenRun& run) {
  if (run.config.log.trace && run.config.log.trace->first > run.total_steps)
    run.log.warning("log.trace begins at step {}, after the last step {}: there will be no trace",
                    run.config.log.trace->first, run.total_steps);
  run.report->describe(run.total_steps);
  if (!run.start.checkpoint.empty())
    run.log.info("resumed from {} at step {}", run.start.checkpoint.string(), run.state.step);
  warn_of_long_warmup(run.schedule, run.log);
  warn_of_known_evaluation(*run.inputs.train, run.inputs.eval_files, run.log);
  for (const auto& part : run.inputs.train->parts())
    warn_of_rows_left_out(part.file, run.config.data.seq_len, run.log);
  warn_of_zero_learning_rate(run.schedule, run.state.step + 1, run.log);
}

}  // namespace

void warn_of_no_evaluation(const OpenRun& run) {
  const auto& files = run.inputs.eval_files;
  const bool several = files.size() > 1;
  run.log.warning("the last step is not evaluated; this does it: llampi evaluate --weights {} --data {}{}",
                  run.config.run.dir, several ? "FILE" : files.front().path().string(),
                  several ? ", for each file of data.eval = " + run.config.data.eval : "");
}

std::optional<Outcome> open_run(OpenRun& run) {
  open_data(run);
  if (!take_folder(run)) {  // before it is looked for what to continue from
    run.log.info("stopped while waiting for {}, which is as it was; run the same command again to continue",
                 run.config.run.dir);
    return Outcome::stopped;
  }
  comm::on_rank_0(run.world, [&] { run.journal.open_prometheus(); });
  run.choose_start();
  if (run.start.finished) {
    tidy_finished_run(run);
    return Outcome::done;
  }
  run.check_weights();

  run.open_compute();
  run.build_engine();
  look_for_room(run);
  const TunedRun choices = make_choices(run.world, *run.engine, run.compute.device(),
                                        choice_sources(run.config, run.start.checkpoint), run.config,
                                        run.inputs.has_loss_mask(), run.log);
  prepare_for_documents(run);

  // Reading the weights takes longest, of what comes before the first step.
  if (comm::on_any_rank(run.world, take_stop_request())) {
    run.log.info("stopped before the first step of this job: nothing is done, and nothing lost");
    return Outcome::stopped;
  }
  const std::int64_t saved_step = fill_engine(run);
  note_placement(run, saved_step);
  run.total_steps = total_steps(run.config, run.state);
  run.schedule = schedule_of(run.config, run.total_steps);
  run.continuable_step = saved_step;
  run.saver = std::make_unique<Saver>(
      run, Saver::Services{run.stopping, *run.room, run.journal, run.side_work, run.continuable_step},
      saved_step);
  run.report = std::make_unique<RunReport>(run);
  open_folder(run, choices);
  describe(run);
  return std::nullopt;
}

}  // namespace llampi::train
