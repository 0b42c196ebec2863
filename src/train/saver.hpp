// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a run: written at once or while training goes on, and the run's folder kept tidy.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "llampi/checkpoint/background.hpp"
#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/health/side_work.hpp"
#include "llampi/train/config.hpp"
#include "train/journal.hpp"
#include "train/room.hpp"
#include "train/run_setup.hpp"
#include "train/stopping.hpp"

namespace llampi::train {

/// Of the engine, with moments where checkpoints have them.
std::vector<checkpoint::TensorInfo> tensors_to_save(const fsdp::Engine& engine, CheckpointContent content);

/// Of all state, on slow disks, which take 200 MB/s from each node.
double guessed_seconds_to_save(const Config& config, const model::Model& model, int nodes);

/// What becomes of older checkpoints once one is saved.
enum class Older : std::uint8_t {
  pruned,  ///< as checkpoint.keep and checkpoint.keep_every say
  kept,    ///< all: the new one may be of no use
};

class Saver {
 public:
  /// What it uses besides the run; all of it outlives the Saver.
  struct Services {
    const Stopping& stopping;
    Room& room;        ///< rank 0 asks it
    Journal& journal;  ///< its metrics are on disk before a checkpoint gets its name
    std::shared_ptr<health::SideWork> side_work;  ///< tells what a save in the background does
    std::atomic<std::int64_t>& continuable_step;  ///< takes that of what is saved, if it is one
  };
  /// Collective. @param saved_step of the newest checkpoint; -1: there is none
  /// @param run outlives the Saver, and its engine is built
  Saver(RunSetup& run, Services services, std::int64_t saved_step);

  /// Collective, with nothing under way. Does nothing if the state's step is saved already. What cannot be
  /// written into run.dir goes to checkpoint.fallback_dir; if that fails too, it waits for room for
  /// checkpoint.wait_minutes, but no longer than run.max_hours leave.
  /// @throws UserError, CommonError if there is none then, or one of the ranks was told to stop
  /// @param content all: whatever checkpoint.content says
  void save(const checkpoint::TrainingState& state, CheckpointContent content, Older older);
  /// Collective, with nothing under way; of checkpoint.content. With checkpoint.async training is held up only until the state is
  /// copied; a failure then shows in finish().
  void start(const checkpoint::TrainingState& state, Older older);
  /// Waits for what is under way, if anything is, and throws its failure: UserError and CommonError on all
  /// ranks, anything else on this one alone.
  void finish();
  bool is_under_way() const { return saving_step_ >= 0; }
  /// Whether finish() would not wait. Ranks may see it one after the other.
  bool is_done() const { return is_under_way() && background_->is_done(); }
  /// After a failure of this rank alone: leaves what is under way to itself, with the engine's snapshot that
  /// it reads and that must never be freed. False if nothing was.
  bool abandon();

  std::int64_t saved_step() const { return saved_step_; }
  /// "REASON; the newest checkpoint is of step 50"
  std::string with_newest_checkpoint(const std::string& reason) const;
  /// A save of all state takes as long as the slowest so far, for as many bytes; a guess before the first one.
  double seconds_to_save_all() const;
  /// That saving has held training up since the last call.
  double take_stall_seconds();

 private:
  struct Job;
  struct Wait;

  void warn_of_surplus() const;
  Job job_of(const checkpoint::TrainingState& state, const std::vector<fsdp::StatePiece>& pieces,
             CheckpointContent content, const std::shared_ptr<checkpoint::Writers>& writers) const;
  void tell_of_untidiness(const std::string& reason) const;
  void make_lost_folder() const;
  bool get_ready(Older older);
  void sync_metrics();
  bool save_in_fallback(const Job& job, const std::exception_ptr& failure);
  bool wait_for_room(Wait& wait, const std::exception_ptr& failure);
  [[noreturn]] void give_up(const std::exception_ptr& failure) const;
  void tell_of_wait(Wait& wait, const std::exception_ptr& failure, double left) const;
  std::filesystem::path file_of(std::int64_t step) const;
  void saved(const std::filesystem::path& file, std::int64_t step, CheckpointContent content, double seconds);
  std::vector<std::filesystem::path> refused_beside(const std::filesystem::path& file) const;

  RunSetup& run_;
  Services services_;
  std::int64_t saved_step_;
  CheckpointContent saved_content_ = CheckpointContent::all;
  std::int64_t saving_step_ = -1;  ///< of the save under way
  double slowest_seconds_ = 0, stall_seconds_ = 0;
  std::shared_ptr<checkpoint::Writers> writers_ = std::make_shared<checkpoint::Writers>();
  /// Of the world of the thread that saves in the background; used by that thread alone.
  std::shared_ptr<checkpoint::Writers> background_writers_ = std::make_shared<checkpoint::Writers>();
  /// As Job::tidy() returned it; written by that thread, and read once its save has come to its end.
  std::shared_ptr<std::string> background_untidiness_ = std::make_shared<std::string>();
  std::unique_ptr<checkpoint::Background> background_;  ///< null: saves hold training up
};

}  // namespace llampi::train
