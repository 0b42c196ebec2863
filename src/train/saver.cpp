// SPDX-License-Identifier: Apache-2.0
#include "train/saver.hpp"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/checkpoint/run_folder.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/train/run_checkpoints.hpp"
#include "llampi/train/stop.hpp"
#include "train/failure_message.hpp"
#include "train/spilled_metrics.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

/// Between looks at whether a save under way waits for that of another rank, for the watchdog.
constexpr std::chrono::milliseconds kLook{200};

constexpr double kTellSeconds = 60;   // between lines of a save that waits for room
constexpr double kLongestPause = 60;  // between its attempts where nothing is known to have changed

/// Parameters and two moments, where weights are parameters alone.
constexpr double kAllOverWeights = 3;

bool works(const auto& work) try {
  work();
  return true;
} catch (const std::exception&) {
  return false;
}

}  // namespace

double guessed_seconds_to_save(const Config& config, const model::Model& model, int nodes) {
  double elements = 0;
  for (const auto& parameter : model.parameters()) {
    if (config.lora.rank == 0 || parameter.adapter) elements += static_cast<double>(parameter.elements());
  }
  const double bytes = 12 * elements;
  return 1 + bytes / (200e6 * nodes);
}

std::vector<checkpoint::TensorInfo> tensors_to_save(const fsdp::Engine& engine, CheckpointContent content) {
  auto tensors = checkpoint::tensor_infos(engine, checkpoint::stored_tensors(engine));
  for (auto& tensor : tensors) tensor.optimizer = tensor.optimizer && content == CheckpointContent::all;
  return tensors;
}

/// What one save needs, in whatever thread.
struct Saver::Job {
  fs::path file;
  std::vector<checkpoint::TensorInfo> tensors;
  std::vector<checkpoint::TensorPiece> pieces;
  checkpoint::TrainingState state;
  checkpoint::CheckpointTexts texts;
  checkpoint::FileSettings settings;
  checkpoint::RunCheckpoints run;  ///< once this one is there
  checkpoint::Retention retention;
  CheckpointContent content;
  Older older = Older::pruned;

  /// Collective. Returns the seconds until the checkpoint has its name.
  double write(comm::World& world, device::Device& device) const {
    const double begin = steady_seconds();
    checkpoint::save_checkpoint(world, device, file, {tensors, pieces, state, texts}, settings);
    return steady_seconds() - begin;
  }
  /// Deletes what this checkpoint replaces, on rank 0. Returns why something is still there; empty: nothing is.
  std::string tidy(const comm::World& world) const {
    if (world.rank() != 0 || older == Older::kept) return "";
    try {
      checkpoint::prune_checkpoints(run, retention);
      return "";
    } catch (const std::exception& error) {
      return error.what();
    }
  }
};

Saver::Saver(RunSetup& run, Services services, std::int64_t saved_step)
    : run_(run), services_(std::move(services)), saved_step_(saved_step) {
  services_.room.note_checkpoints(saved_step_, run_.refused);  // reading finds more than opening did
  if (run_.world.rank() == 0) warn_of_surplus();
  if (run_.config.checkpoint.content == CheckpointContent::weights) {
    run_.log.info(
        "checkpoint.content = weights: after a crash, this run cannot continue from its checkpoints; one that is told to "
        "stop saves everything, and can be continued");
  }
  if (!run_.engine->options().snapshot) return;
  background_ = std::make_unique<checkpoint::Background>(run_.world);
  if (background_->works()) return;
  run_.log.warning(
      "checkpoint.async has no effect: {} does not provide MPI_THREAD_MULTIPLE; training waits for each save",
      run_.world.describe());
  background_.reset();
}

/// Of files that a run with other options kept. One more than stay is there where a run was killed.
void Saver::warn_of_surplus() const try {
  const auto& config = run_.config;
  const auto files = checkpoint::surplus_checkpoints({config.run.dir, saved_step_, refused_beside({})},
                                                     retention_of(config));
  if (files.size() < 2) return;
  run_.log.warning(
      "with checkpoint.keep = {} and checkpoint.keep_every = {} the next save deletes {} older checkpoints "
      "or more, from {} on",
      config.checkpoint.keep, config.checkpoint.keep_every, files.size(), files.front().string());
} catch (const UserError&) {  // of this rank alone; a save meets it too, and tells all
}

Saver::Job Saver::job_of(const checkpoint::TrainingState& state, const std::vector<fsdp::StatePiece>& pieces,
                         CheckpointContent content,
                         const std::shared_ptr<checkpoint::Writers>& writers) const {
  const auto& config = run_.config;
  const fs::path file = file_of(state.step);
  auto settings = file_settings(config);
  settings.writers = writers;
  auto own = checkpoint::tensor_pieces(*run_.engine, pieces, checkpoint::stored_tensors(*run_.engine));
  if (content == CheckpointContent::weights) {
    for (auto& piece : own) piece.exp_avg = piece.exp_avg_sq = {};
  }
  return {.file = file,
          .tensors = tensors_to_save(*run_.engine, content),
          .pieces = std::move(own),
          .state = state,
          .texts = run_.checkpoint_texts(),
          .settings = std::move(settings),
          .run = {config.run.dir, state.step, refused_beside(file), services_.room.fallback()},
          .retention = retention_of(config),
          .content = content};
}

/// State of waiting for disk space: since when, the last message, and the pause before the next attempt.
struct Saver::Wait {
  double begin = steady_seconds();
  double told = begin - kTellSeconds;
  double pause = 1;  ///< until the next attempt
  bool is_by_file;   ///< the file `stop` was there before: the run may stop once the state is saved
  std::optional<bool> is_by_signal = {};  ///< likewise a signal; nothing: it has not waited yet
};

void Saver::save(const checkpoint::TrainingState& state, CheckpointContent content, Older older) {
  if (saved_step_ == state.step && (saved_content_ == CheckpointContent::all || content == saved_content_))
    return;
  const health::FlightPhase phase(run_.record, "saves a checkpoint");
  const double begin = steady_seconds();
  Job job = job_of(state, run_.engine->pieces_to_save(), content, writers_);
  job.older = older;
  Wait wait{.is_by_file = services_.stopping.file_is_there()};
  for (;;) {
    get_ready(older);
    const auto failure = comm::common_failure([&] {
      sync_metrics();
      saved(job.file, state.step, job.content, job.write(run_.world, run_.compute.device()));
    });
    if (!failure) {
      tell_of_untidiness(job.tidy(run_.world));
      if (run_.world.rank() == 0)
        remove_spilled_metrics(services_.room.fallback(), job.state.step);  // they are synced
      break;
    }
    if (save_in_fallback(job, failure)) break;
    if (!wait_for_room(wait, failure)) give_up(failure);
  }
  if (wait.is_by_signal.value_or(false)) request_stop();  // which it may do now
  stall_seconds_ += steady_seconds() - begin;
}

std::string Saver::with_newest_checkpoint(const std::string& reason) const {
  return fmt::format("{}; {}", reason,
                     saved_step_ < 0 ? "there is no checkpoint yet"
                                     : fmt::format("the newest checkpoint is of step {}", saved_step_));
}

/// The failure as it is, with what to do and what is left.
void Saver::give_up(const std::exception_ptr& failure) const {
  const bool continues = services_.continuable_step >= 0 && run_.config.run.resume.continues_own();
  const char* advice = continues ? "; once that is mended, the same command continues the run" : "";
  const std::string text = with_newest_checkpoint(message_of(failure, run_.texts.name_of) + advice);
  try {
    std::rethrow_exception(failure);
  } catch (const UserError&) {
    throw UserError(text);
  } catch (const std::exception&) {
    throw comm::CommonError(text);
  }
}

/// On rank 0, where somebody has deleted it; but not where all of the run's folder is gone, as when its file system is not there.
void Saver::make_lost_folder() const {
  const fs::path folder = services_.room.folder();
  std::error_code ignored;  // where it cannot be made, the save fails and is treated as that
  if (!fs::exists(folder.parent_path() / "config.ini", ignored) || !fs::create_directory(folder, ignored))
    return;
  run_.log.warning("{} and the checkpoints in it have been deleted; the folder is created again",
                   folder.string());
}

/// Whether the next checkpoint fits into run.dir, from which those that it would replace may go at once, and
/// the metrics are there. Collective.
bool Saver::get_ready(Older older) {
  bool is_short = false;
  comm::agree(run_.world, [&] {
    if (run_.world.rank() != 0) return;
    make_lost_folder();
    if (older == Older::pruned) services_.room.make_some(run_.log);
    is_short = !services_.room.fits() || !works([&] { services_.journal.metrics()->sync(); });
  });
  return !comm::on_any_rank(run_.world, is_short);
}

/// Collective.
void Saver::sync_metrics() {
  comm::agree(run_.world, [&] {
    if (run_.world.rank() == 0) services_.journal.metrics()->sync();
  });
}

/// False if that fails, too, or if there is no fallback. Collective.
bool Saver::save_in_fallback(const Job& job, const std::exception_ptr& failure) {
  const fs::path& folder = services_.room.fallback();
  if (folder.empty()) return false;
  run_.log.warning("{}", message_of(failure, run_.texts.name_of));
  Job elsewhere = job;
  elsewhere.run.run_dir = folder;
  elsewhere.run.fallback.clear();
  elsewhere.file = checkpoint::checkpoint_path(folder, job.state.step);
  elsewhere.retention = {.newest = 1, .weights_only = job.retention.weights_only};
  bool spilled = false;  // on rank 0: lines of metrics.jsonl are there, too
  const auto second = comm::common_failure([&] {
    comm::agree(run_.world, [&] {
      if (run_.world.rank() != 0) return;
      io::create_folder(elsewhere.file.parent_path());
      const auto& lines = services_.journal.metrics()->unwritten();
      spilled = !lines.empty();
      if (spilled) io::write_whole(spilled_metrics(folder, job.state.step), lines);
    });
    saved(elsewhere.file, job.state.step, job.content, elsewhere.write(run_.world, run_.compute.device()));
  });
  if (second) {
    run_.log.warning("{}", message_of(second, run_.texts.name_of));
    return false;
  }
  const bool continues = job.content == CheckpointContent::all && run_.config.run.resume.continues_own();
  const std::string lines = spilled ? spilled_metrics(folder, job.state.step).string() : "";
  std::string next = continues ? ". The same command continues from it" : "";
  if (spilled && continues) next += fmt::format(", and appends the lines in {} to metrics.jsonl", lines);
  if (spilled && !continues) next += fmt::format("; lines of metrics.jsonl are in {}", lines);
  run_.log.warning("the checkpoint of step {} is in checkpoint.fallback_dir: {}; make room in {}{}",
                   job.state.step, elsewhere.file.string(), run_.config.run.dir, next);
  tell_of_untidiness(elsewhere.tidy(run_.world));
  if (spilled)
    remove_spilled_metrics(folder, job.state.step - 1);  // the lines of older ones are in this one, too
  return true;
}

/// False if it waits no longer. Collective.
bool Saver::wait_for_room(Wait& wait, const std::exception_ptr& failure) {
  enum : std::int64_t { kWait, kAttempt, kTooLate, kToldToStop };  // the largest of all ranks counts
  const double end = wait.begin + 60 * run_.config.checkpoint.wait_minutes;
  if (!wait.is_by_signal) wait.is_by_signal = take_stop_request();
  const double next_attempt = steady_seconds() + wait.pause;
  wait.pause = std::min(2 * wait.pause, kLongestPause);
  bool was_short = false;
  for (;;) {
    run_.record.act("waiting for room");
    const double now = steady_seconds(), left = std::min(end - now, services_.stopping.seconds_left());
    const bool by_file = !wait.is_by_file && services_.stopping.file_is_there();
    std::int64_t verdict = by_file || take_stop_request() ? kToldToStop : left <= 0 ? kTooLate : kWait;
    if (by_file) services_.stopping.put_file_aside(run_.log);
    if (verdict == kWait && run_.world.rank() == 0) {
      if (now - wait.told >= kTellSeconds) tell_of_wait(wait, failure, left);
      const bool is_short = !services_.room.has_some();
      if (!is_short && (was_short || now >= next_attempt)) verdict = kAttempt;
      was_short = is_short;
    }
    verdict = comm::max_over_ranks(run_.world, verdict);
    if (verdict >= kTooLate && wait.told >= wait.begin)  // it has said that it waits
      run_.log.warning("the wait for room ends without a checkpoint of step {}: {}", run_.state.step,
                       verdict == kToldToStop ? "the run was told to stop"
                                              : "checkpoint.wait_minutes or run.max_hours is over");
    if (verdict != kWait) return verdict == kAttempt;
    std::this_thread::sleep_for(kLook);
  }
}

void Saver::tell_of_wait(Wait& wait, const std::exception_ptr& failure, double left) const {
  wait.told = steady_seconds();
  run_.log.warning(
      "{}. The state stays in memory and is saved as soon as that works; waiting up to {} "
      "(checkpoint.wait_minutes, run.max_hours; a signal or the file {}/stop ends the wait and the run)",
      message_of(failure, run_.texts.name_of), format_duration(left), run_.config.run.dir);
}

void Saver::start(const checkpoint::TrainingState& state, Older older) {
  const CheckpointContent content = run_.config.checkpoint.content;
  if (!background_ || !get_ready(older)) return save(state, content, older);
  const health::FlightPhase phase(run_.record, "copies the state to save it");
  const double begin = steady_seconds();
  Job job = job_of(state, run_.engine->snapshot(), content, background_writers_);
  job.older = older;
  job.settings.progress = [work = services_.side_work] { work->move(); };
  background_->start([job, &engine = *run_.engine, work = services_.side_work,
                      untidiness = background_untidiness_](comm::World& world) {
    const health::SideWorkScope scope(*work, "saving a checkpoint in the background", world);
    comm::agree(world, [&] { engine.wait_for_snapshot(); });
    const double seconds = job.write(world, *device::make_cpu_device(1));
    *untidiness = job.tidy(world);
    return seconds;
  });
  saving_step_ = state.step;
  stall_seconds_ += steady_seconds() - begin;
}

void Saver::finish() {
  if (!is_under_way()) return;
  const health::FlightPhase phase(run_.record, "waits for the save under way");
  const double begin = steady_seconds();
  const bool waits = !background_->is_done();
  while (!background_->is_done_within(kLook)) run_.record.wait_for_ranks(background_->waits());
  run_.record.wait_for_ranks(false);
  const std::int64_t step = std::exchange(saving_step_, -1);
  const double seconds = background_->finish();
  if (waits) stall_seconds_ += steady_seconds() - begin;
  saved(file_of(step), step, run_.config.checkpoint.content, seconds);
  tell_of_untidiness(*background_untidiness_);
}

/// The checkpoint is saved, and the next one deletes what can be deleted then.
void Saver::tell_of_untidiness(const std::string& reason) const {
  if (!reason.empty()) run_.log.warning("older checkpoints stay: {}", reason);
}

bool Saver::abandon() {
  if (!is_under_way()) return false;
  background_->abandon();
  return true;
}

double Saver::take_stall_seconds() { return std::exchange(stall_seconds_, 0); }

fs::path Saver::file_of(std::int64_t step) const {
  return checkpoint::checkpoint_path(run_.config.run.dir, step);
}

double Saver::seconds_to_save_all() const {
  if (slowest_seconds_ <= 0)
    return guessed_seconds_to_save(run_.config, run_.engine->model(), run_.world.topology().nodes);
  const bool weights_so_far = run_.config.checkpoint.content == CheckpointContent::weights;
  return slowest_seconds_ * (weights_so_far ? kAllOverWeights : 1);
}

void Saver::saved(const fs::path& file, std::int64_t step, CheckpointContent content, double seconds) {
  saved_step_ = step;
  saved_content_ = content;
  slowest_seconds_ = std::max(slowest_seconds_, seconds);
  std::erase_if(run_.refused,
                [&](const checkpoint::Refused& refused) { return refused.file == file; });  // it is replaced
  services_.room.note_checkpoints(saved_step_, run_.refused);
  run_.log.info("saved {} in {:.2f} s", file.string(), seconds);
  if (content == CheckpointContent::all) services_.continuable_step = step;
  services_.journal.saved(file, step, content, seconds);
}

/// Checkpoints that are not whole, once `file` is.
std::vector<fs::path> Saver::refused_beside(const fs::path& file) const {
  std::vector<fs::path> files;
  for (const auto& refused : run_.refused) {
    if (refused.file != file) files.push_back(refused.file);
  }
  return files;
}

}  // namespace llampi::train
