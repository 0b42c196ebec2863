// SPDX-License-Identifier: Apache-2.0
// A run before its first step: its folder is taken, where it starts is chosen, its device and engine are there and have its
// state.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "llampi/comm/comm.hpp"
#include "llampi/health/side_work.hpp"
#include "llampi/health/watchdog.hpp"
#include "llampi/optim/schedule.hpp"
#include "llampi/train/outcome.hpp"
#include "train/journal.hpp"
#include "train/room.hpp"
#include "train/run_report.hpp"
#include "train/run_setup.hpp"
#include "train/saver.hpp"
#include "train/stopping.hpp"

namespace llampi::train {

/// What one job has of a run.
struct OpenRun : RunSetup {
  Stopping stopping{config.run.dir, config.run.max_hours, world.rank()};
  std::shared_ptr<health::SideWork> side_work = std::make_shared<health::SideWork>();
  std::atomic<bool> holds_folder = false;  ///< no other job has run.dir; asked by the watchdog's thread
  health::Watchdog* watchdog = nullptr;    ///< null: off
  std::atomic<std::int64_t> continuable_step =
      -1;  ///< of the newest checkpoint that the same command continues from; asked likewise

  // By open_run().
  Journal journal{config, log};
  std::unique_ptr<RunReport> report = {};
  optim::LearningRateSchedule schedule = {};
  std::int64_t total_steps = 0;
  std::string failure =
      {};  ///< a word for what ends the run, where it is one that has a word: JobEnd::reason
  bool owes_evaluation = false;  ///< of the step at which the run was stopped
  std::unique_ptr<Room> room = {};
  std::unique_ptr<Saver> saver = {};  ///< destroyed before the engine, whose snapshot it reads

  /// Whether what is done every so many steps is done after this one. @param every 0: never
  bool due(std::int64_t every, std::int64_t step) const {
    return every > 0 && (step % every == 0 || step == total_steps);
  }
};

/// Of the last step, after which the same command finds a complete run.
void warn_of_no_evaluation(const OpenRun& run);

/// Opens it. Collective.
/// @returns how the job ends where there is nothing to train: the run is finished, or the job was told to stop while another
/// one had the run's folder; otherwise nothing
/// @throws UserError and CommonError, the same on every rank
std::optional<Outcome> open_run(OpenRun& run);

}  // namespace llampi::train
