// SPDX-License-Identifier: Apache-2.0
// Ends a job in which a rank has died, has stopped, or issues different operations (desync), and reports which rank.
//
// A thread on every rank. Ranks tell every second where they stand along a tree (docs/scaling.md), up to rank 0, and
// down it that rank 0 and a deputy, on another node if there is one, are there. Rank 0 judges, and the deputy if rank 0
// is unresponsive. Then every rank that still answers writes its flight record to the run folder, the rank that
// judged reports the diagnosis, and the job is aborted. A rank that hears from neither of the two ends the job
// itself. Ranks of one machine watch each other's processes, and connections between machines detect the exit
// of a rank that is alone on its machine (process_links.hpp), so an exit is seen at once under any launcher.
// Where MPI does not let a second thread call it, each rank watches only that it moves itself.
//
// A thread notices when it has not run for long, because the whole job was suspended: that time does not
// count.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/health/flight_record.hpp"
#include "llampi/health/side_work.hpp"

namespace llampi::health {

struct WatchdogOptions {
  /// How long a rank may be silent, or no rank may move, outside of phases; at least 1. In a phase (see
  /// FlightRecord) longer, where reading and writing files is movement. See allow_steps_of().
  double seconds = 600;
  std::filesystem::path run_dir;  ///< for the records
  /// Whether this job holds run_dir; before, nothing is written there, where another job may have its records. Called from a thread.
  /// Empty: it does.
  std::function<bool()> holds_run_dir = {};
  /// What a second thread does, which may be without movement for as long as a rank in a phase. May be null.
  std::shared_ptr<const SideWork> side_work;
  /// Told why the job ends: several lines, on the one rank that found it out, from a thread. May be empty.
  std::function<void(const std::string& summary)> complain;
  double least_phase_seconds = 600;  ///< in a phase at least so long
};

class Watchdog {
 public:
  /// Collective. `world` and `record` must outlive it.
  Watchdog(comm::World& world, const FlightRecord& record, WatchdogOptions options, const Log& log);
  /// Without finish() or leave() it was left by an exception of this rank alone: the others are told so.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// The run succeeded: all ranks stop watching. Collective.
  void finish();
  /// After an error that all ranks throw: all ranks stop watching, and pending messages are received,
  /// unless a rank does not take part within a second.
  void leave();
  /// From now on a rank may be without movement for so long, if that is longer than the options have it. The same on all ranks.
  void allow_steps_of(double seconds);

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace llampi::health
