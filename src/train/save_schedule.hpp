// SPDX-License-Identifier: Apache-2.0
// What comes before and after the saves of a run: replicas are equal, no failure is open, and a save that failed or is put off is made
// later.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

#include "llampi/comm/first_failure.hpp"
#include "llampi/train/config.hpp"
#include "train/not_finite.hpp"
#include "train/open_run.hpp"

namespace llampi::train {

/// All functions that do something are collective, but for notice().
class SaveSchedule {
 public:
  /// All outlive it.
  /// @param failure of this rank in what it did since the ranks last told each other; thrown on every rank before a save
  SaveSchedule(OpenRun& run, const comm::FirstFailure& failure, const NotFiniteSteps& not_finite)
      : run_(run), failure_(failure), not_finite_(not_finite) {}

  /// The state, now; training waits.
  void save(CheckpointContent content);
  /// What is due. After a save in the background that failed, training waits for this one, which may go to
  /// checkpoint.fallback_dir or wait for room. What diverged replaces nothing: in a row of steps that are not finite, it is put off.
  void start();
  /// Whether one is to be made after this step, due or not.
  bool owes() const { return saves_again_ || is_put_off_; }
  bool saves_again() const { return saves_again_; }  ///< as the last save in the background failed
  /// A failed one of which this rank knows, and others may not.
  bool has_failed() const { return failed_save_ != nullptr; }
  /// Looks whether the save under way has come to its end. This rank may be the first to see it.
  void notice();
  /// Waits for the save under way, tells of it if it failed, and throws the failures of ranks.
  void settle();
  /// With run.verify_replicas_every: the run ends if replicas differ. Once for each step.
  void compare_replicas();
  /// Ends the run, once a save under way has come to its end. @throws comm::CommonError
  [[noreturn]] void fail(const std::string& reason);
  std::string with_newest_checkpoint(const std::string& reason) const;

 private:
  void finish();
  void note_failed_save();
  void get_ready();
  Older older() const;

  OpenRun& run_;
  const comm::FirstFailure& failure_;
  const NotFiniteSteps& not_finite_;
  /// Of a save in the background: of all ranks, though they may notice one after the other.
  std::exception_ptr failed_save_;
  bool saves_again_ = false;         ///< after this step
  bool is_put_off_ = false;          ///< until a step is finite
  std::int64_t compared_step_ = -1;  ///< at which replicas were equal
};

}  // namespace llampi::train
