// SPDX-License-Identifier: Apache-2.0
// When a run ends before its last step: told so by a signal or a file, or because its time is over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <tuple>

#include "llampi/core/log.hpp"

namespace llampi::train {

/// Of several ranks' reasons the largest is told.
enum class StopReason : std::uint8_t { none, max_hours, signal, file };

/// Ranks with each reason to stop.
struct StopVotes {
  std::int64_t max_hours = 0, signal = 0, file = 0;

  auto members() { return std::tie(max_hours, signal, file); }
};

class Stopping {
 public:
  /// The time begins. @param max_hours 0: none
  /// Rank 0 looks for the file `stop` in the run's folder.
  Stopping(const std::filesystem::path& run_dir, double max_hours, int rank);

  /// What this rank has to say, to be summed over the ranks and given to decide(). A signal is said once.
  /// @param seconds_to_go_on until the run could stop the next time, with everything saved
  StopVotes vote(double seconds_to_go_on);
  /// Whether the run stops.
  bool decide(const StopVotes& votes);

  StopReason reason() const { return reason_; }
  /// "by a signal"
  std::string text() const;
  double seconds_since_start() const;
  double seconds_left() const;  ///< of max_hours; infinite without
  bool file_is_there() const;   ///< as rank 0 sees it; false on the others
  /// At the end of the run, so that nothing stops at once what continues it. Rank 0 does it.
  void remove_file(const Log& log) const;
  /// Likewise when the run stops: `stop` becomes `stopped`, by which a job script sees that a person has
  /// stopped it.
  void put_file_aside(const Log& log) const;
  /// Removes `stopped`, once the run goes on.
  void forget_last_stop() const;

 private:
  std::filesystem::path file_, stopped_file_;
  double max_seconds_;  ///< 0: none
  bool looks_for_file_;
  double started_;
  StopReason reason_ = StopReason::none;
};

/// What ranks have voted so far. A vote travels while a step runs, and another may be asked for meanwhile; so each rank says
/// again that it had a signal, and what was heard once counts from then on.
class StopTally {
 public:
  /// It outlives the tally.
  explicit StopTally(Stopping& stopping) : stopping_(stopping) {}

  /// As Stopping::vote(), of this rank.
  StopVotes own(double seconds_to_go_on);
  /// @param votes of all ranks. Returns stops().
  bool hear(const StopVotes& votes);
  /// Whether the run stops: the same on all ranks.
  bool stops() const { return stops_; }
  /// What comes next needs less time than was kept: it is asked again. All ranks do it at once.
  void forget_max_hours() {
    heard_.max_hours = 0;
    stops_ = stopping_.decide(heard_);
  }

 private:
  Stopping& stopping_;
  StopVotes heard_;
  std::int64_t own_signal_ = 0;
  bool stops_ = false;
};

}  // namespace llampi::train
