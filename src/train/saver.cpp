#include "train/saver.hpp"

#include <algorithm>
#include <utility>

#include "llampi/core/clock.hpp"
#include "train/session.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

/// Between looks at whether a save under way waits for that of another rank, for the watchdog.
constexpr std::chrono::milliseconds kLook{200};

}  // namespace

/// What one save needs, in whatever thread.
struct Saver::Job {
  fs::path file, run_dir;
  std::vector<TensorInfo> tensors;
  std::vector<TensorPiece> pieces;
  TrainingState state;
  CheckpointTexts texts;
  FileSettings settings;
  Retention retention;
  std::vector<fs::path> refused;

  /// Collective. Returns the seconds until the checkpoint has its name.
  double run(World& world, Device& device) const {
    const double begin = steady_seconds();
    save_checkpoint(world, device, file, tensors, pieces, state, texts, settings);
    const double seconds = steady_seconds() - begin;
    agree(world, [&] {
      if (world.rank() == 0) prune_checkpoints(run_dir, retention, refused);
    });
    return seconds;
  }
};

Saver::Saver(Run run, std::int64_t saved_step, std::vector<Refused> refused)
    : run_(std::move(run)), saved_step_(saved_step), refused_(std::move(refused)) {
  if (run_.world.rank() == 0) warn_of_surplus();
  if (!run_.engine.options().snapshot) return;
  background_ = std::make_unique<Background>(run_.world);
  if (background_->works()) return;
  run_.log.warning("checkpoint.async: {} does not let several threads call it; saving holds training up",
                   run_.world.describe());
  background_.reset();
}

/// Of files that a run with other options kept. One more than stay is there where a run was killed.
void Saver::warn_of_surplus() const try {
  const auto& config = run_.config;
  const auto files = surplus_checkpoints(config.run.dir, retention(), refused_beside({}));
  if (files.size() < 2) return;
  run_.log.warning(
      "with checkpoint.keep = {} and checkpoint.keep_every = {} the next save deletes {} older checkpoints "
      "or more, from {} on",
      config.checkpoint.keep, config.checkpoint.keep_every, files.size(), files.front().string());
} catch (const UserError&) {  // of this rank alone; a save meets it too, and tells all
}

Retention Saver::retention() const {
  return {run_.config.checkpoint.keep, run_.config.checkpoint.keep_every};
}

Saver::Job Saver::job_of(const TrainingState& state, const std::vector<StatePiece>& pieces) const {
  const auto& config = run_.config;
  const fs::path file = file_of(state.step);
  return {.file = file,
          .run_dir = config.run.dir,
          .tensors = tensor_infos(run_.engine),
          .pieces = tensor_pieces(pieces),
          .state = state,
          .texts = run_.texts,
          .settings = {.stripes = config.checkpoint.stripes},
          .retention = retention(),
          .refused = refused_beside(file)};
}

void Saver::save(const TrainingState& state) {
  if (saved_step_ == state.step) return;
  const FlightPhase phase(run_.record, "saves a checkpoint");
  const double begin = steady_seconds();
  const Job job = job_of(state, run_.engine.pieces_to_save());
  saved(state.step, job.run(run_.world, run_.device));
  stall_seconds_ += steady_seconds() - begin;
}

void Saver::start(const TrainingState& state) {
  if (!background_) return save(state);
  const FlightPhase phase(run_.record, "copies the state to save it");
  const double begin = steady_seconds();
  background_->start([job = job_of(state, run_.engine.snapshot()), &engine = run_.engine](World& world) {
    agree(world, [&] { engine.wait_for_snapshot(); });
    return job.run(world, *make_cpu_device(1));
  });
  saving_step_ = state.step;
  stall_seconds_ += steady_seconds() - begin;
}

void Saver::finish() {
  if (!is_under_way()) return;
  const FlightPhase phase(run_.record, "waits for the save under way");
  const double begin = steady_seconds();
  const bool waits = !background_->is_done();
  while (!background_->is_done_within(kLook)) run_.record.wait_for_ranks(background_->waits());
  run_.record.wait_for_ranks(false);
  const std::int64_t step = std::exchange(saving_step_, -1);
  const double seconds = background_->finish();
  if (waits) stall_seconds_ += steady_seconds() - begin;
  saved(step, seconds);
}

bool Saver::abandon() {
  if (!is_under_way()) return false;
  background_->abandon();
  return true;
}

double Saver::take_stall_seconds() { return std::exchange(stall_seconds_, 0); }

fs::path Saver::file_of(std::int64_t step) const { return checkpoint_path(run_.config.run.dir, step); }

void Saver::saved(std::int64_t step, double seconds) {
  const fs::path file = file_of(step);
  saved_step_ = step;
  slowest_seconds_ = std::max(slowest_seconds_, seconds);
  std::erase_if(refused_, [&](const Refused& refused) { return refused.file == file; });  // it is replaced
  run_.log.info("saved {} in {:.2f} s", file.string(), seconds);
}

/// Checkpoints that are not whole, once `file` is.
std::vector<fs::path> Saver::refused_beside(const fs::path& file) const {
  std::vector<fs::path> files;
  for (const auto& refused : refused_) {
    if (refused.file != file) files.push_back(refused.file);
  }
  return files;
}

}  // namespace llampi
