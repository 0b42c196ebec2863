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
#include "llampi/train/open_compute.hpp"
#include "llampi/train/run_text.hpp"
#include "llampi/train/stop.hpp"
#include "train/decisions.hpp"
#include "train/engine_config.hpp"
#include "train/placement_note.hpp"
#include "train/run_checkpoints.hpp"
#include "train/run_engine.hpp"
#include "train/run_folder.hpp"
#include "train/run_warnings.hpp"
#include "train/same_model.hpp"
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
  comm::agree(run.world, [&] {
    run.inputs = open_inputs(run.config, run.world.size(), model);
    run.state = run.inputs.fresh;
  });
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

void check_weights(const OpenRun& run) {
  if (run.start.weights.empty()) return;
  comm::agree(run.world, [&] {
    check_same_model(run.inputs.llama, run.config.model.config, config_of_start(run.start),
                     run.start.weights.string(), "give the model.config that belongs to the weights");
  });
}

checkpoint::CheckpointTexts checkpoint_texts(const OpenRun& run) {
  return {run.inputs.llama.json, run.start.run_text, run.inputs.train_file->notes().chat_template,
          adapter_text_of(run.inputs, run.config)};
}

/// Before weights are read, which takes a while.
void look_for_room(OpenRun& run, const std::vector<checkpoint::Refused>& refused) {
  std::vector<fs::path> damaged;
  for (const auto& file : refused) damaged.push_back(file.file);
  const fs::path fallback = comm::from_rank_0(run.world, [&] { return fallback_folder(run.config); });
  run.room = std::make_unique<Room>(
      run.config,
      // Also where weights are saved: when the run is told to stop, all of its state is.
      checkpoint::checkpoint_bytes(tensors_to_save(*run.engine, CheckpointContent::all),
                                   checkpoint_texts(run), file_settings(run.config)),
      fallback, damaged);
  comm::on_rank_0(run.world, [&] { require_room(*run.room, run.log); });
}

/// Else steps that bring a new kind of micro-batch would take longer.
void prepare_for_documents(OpenRun& run) {
  if (!run.inputs.packs_documents()) return;
  const double begin = steady_seconds();
  run.engine->prepare_for_documents();
  if (run.compute.on_gpu()) run.log.info("packed documents: prepared in {:.1f} s", steady_seconds() - begin);
}

checkpoint::TrainingState fill_from_start(OpenRun& run) {
  return fill_from_start(run.world, run.compute.device(), *run.engine, run.start, run.inputs, run.config,
                         run.log);
}

/// Fills the engine from a checkpoint or, should that turn out to be damaged, the next older one that is
/// whole. Returns its step.
std::int64_t resume(OpenRun& run, std::vector<checkpoint::Refused>& refused) {
  for (;;) {
    try {
      const auto saved = fill_from_start(run);
      run.state = continue_from(saved, run.state);
      return saved.step;
    } catch (const checkpoint::DamagedCheckpoint& error) {  // on all ranks
      refused.push_back({run.start.checkpoint, error.what()});
      run.log.warning("skipped a checkpoint: {}", error.what());
    }
    run.start = choose_start(run.world, run.config, run.texts, run.inputs, refused, run.log);
  }
}

/// Gives the engine its state and notes in the run's text what was decided for it.
/// @returns the step of the checkpoint; -1 where the run begins
std::int64_t fill_engine(OpenRun& run, std::vector<checkpoint::Refused>& refused,
                         const Decisions& decisions) {
  const bool begins = run.start.checkpoint.empty();
  const health::FlightPhase phase(run.record, begins ? "reads the weights" : "reads the checkpoint");
  std::int64_t saved_step = -1;
  if (begins) {
    fill_from_start(run);
  } else {
    saved_step = resume(run, refused);
  }
  std::string& text = run.start.run_text;
  text = with_decisions(text, decisions);
  const std::string placement =
      placement_note(run.engine->mesh(), run.engine->options().precision, run.world.topology().node_of_rank);
  if (!placement.empty()) text = with_note(text, "run.placement", placement);
  if (const auto change = change_of_placement(run.start.placement, placement);
      !begins && !change.empty() && run.config.fsdp.sum_order != fsdp::SumOrder::tree)
    run.log.info("changed since step {}: {}", saved_step, change);
  return saved_step;
}

std::unique_ptr<Saver> make_saver(OpenRun& run, std::int64_t saved_step,
                                  std::vector<checkpoint::Refused> refused) {
  return std::make_unique<Saver>(
      Saver::Run{run.world, run.compute.device(), *run.engine, run.config, checkpoint_texts(run),
                 run.texts.name_of, run.record, run.log, run.stopping, *run.room, run.side_work,
                 [&run](const auto&... of_save) { run.journal.saved(of_save...); },
                 [&run] { return run.journal.metrics(); }},
      saved_step, std::move(refused));
}

/// Not even where the disk is full does training depend on it.
void keep_choices_of_run(const OpenRun& run, const TunedRun& choices) {
  if (choices.products.empty()) return;
  try {
    keep_choices(run.room->folder() / kChoicesFile, choices, run.log);
  } catch (const UserError& error) {
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
  require_shared_folder(run.world, run.room->folder(), [&] { run.record.act("looking for the run folder"); });
  run.journal.begin(run.state.step, run.total_steps);
  run.stopping.forget_last_stop();
  run.owes_evaluation = run.owes_evaluation && run.due(run.config.train.eval_every, run.state.step);
}

void describe(OpenRun& run) {
  if (run.config.log.trace && run.config.log.trace->first > run.total_steps)
    run.log.warning("log.trace begins at step {}, after the last step {}: there will be no trace",
                    run.config.log.trace->first, run.total_steps);
  run.report->describe(run.total_steps);
  if (!run.start.checkpoint.empty())
    run.log.info("resumed from {} at step {}", run.start.checkpoint.string(), run.state.step);
  warn_of_zero_learning_rate(run.schedule, run.state.step + 1, run.log);
}

}  // namespace

std::optional<Outcome> open_run(OpenRun& run) {
  open_data(run);
  if (!take_folder(run)) {  // before it is looked for what to continue from
    run.log.info("stopped while waiting for {}, which is as it was; run the same command again to continue",
                 run.config.run.dir);
    return Outcome::stopped;
  }
  comm::on_rank_0(run.world, [&] { run.journal.open_prometheus(); });
  std::vector<checkpoint::Refused> refused;
  run.start = choose_start(run.world, run.config, run.texts, run.inputs, refused, run.log);
  if (run.start.finished) return Outcome::done;
  check_weights(run);

  run.compute = open_compute_of_run(run.world, run.config, run.texts.name_of, run.log);
  auto [engine, decisions] =
      build_engine(run.world, run.compute, run.inputs, run.config, run.start.run_text, run.log);
  run.engine = std::move(engine);
  run.engine->keep_record(run.record);
  look_for_room(run, refused);
  const TunedRun choices =
      make_choices(run.world, *run.engine, run.compute.device(),
                   choice_sources(run.config, run.start.checkpoint), run.config, run.log);
  prepare_for_documents(run);

  const std::int64_t saved_step = fill_engine(run, refused, decisions);
  run.total_steps = total_steps(run.config, run.state);
  run.schedule = schedule_of(run.config, run.total_steps);
  run.saver = make_saver(run, saved_step, std::move(refused));
  run.report =
      std::make_unique<RunReport>(run.world, run.config, run.inputs, run.compute, *run.engine, run.log);
  open_folder(run, choices);
  describe(run);
  return std::nullopt;
}

}  // namespace llampi::train
