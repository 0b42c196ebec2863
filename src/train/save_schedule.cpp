// SPDX-License-Identifier: Apache-2.0
#include "train/save_schedule.hpp"

#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "train/failure_message.hpp"
#include "train/replicas.hpp"

namespace llampi::train {

void SaveSchedule::save(CheckpointContent content) {
  get_ready();
  const std::int64_t steps = not_finite_.in_a_row();
  if (steps > 0)
    run_.log.warning(
        "the checkpoint of step {} may be unusable: the last {} with labels {} not finite; no older one is deleted for it",
        run_.state.step, steps == 1 ? "step" : fmt::format("{} steps", steps), steps == 1 ? "was" : "were");
  run_.saver->save(run_.state, content, older());
  saves_again_ = false;
}

void SaveSchedule::start() {
  is_put_off_ = not_finite_.in_a_row() > 0;
  if (is_put_off_) return;
  get_ready();
  if (saves_again_) {
    run_.saver->save(run_.state, run_.config.checkpoint.content, older());
  } else {
    run_.saver->start(run_.state, older());
  }
  saves_again_ = false;
}

Older SaveSchedule::older() const { return not_finite_.state_is_usable() ? Older::pruned : Older::kept; }

void SaveSchedule::notice() {
  if (run_.saver->is_done()) finish();
}

void SaveSchedule::settle() {
  finish();
  note_failed_save();
  failure_.agree(run_.world);
}

/// A file that is saved takes a part of each replica: it is whole, and wrong, if these are not equal.
void SaveSchedule::get_ready() {
  const health::FlightPhase phase(run_.record, "gets ready to save");
  settle();
  compare_replicas();
}

void SaveSchedule::compare_replicas() {
  if (run_.config.run.verify_replicas_every == 0 || compared_step_ == run_.state.step) return;
  const health::FlightPhase phase(run_.record, "compares replicas");
  const std::string difference = find_differing_replicas(run_.world, run_.compute.device(), *run_.engine);
  if (!difference.empty()) fail(fmt::format("after step {}, {}", run_.state.step, difference));
  compared_step_ = run_.state.step;
}

/// A failure of this rank alone is not kept: the saves of other ranks wait for this one.
void SaveSchedule::finish() {
  if (const auto failure = comm::common_failure([&] { run_.saver->finish(); })) failed_save_ = failure;
}

/// Once all ranks have noticed it: it ends no run, whose state is still in memory.
void SaveSchedule::note_failed_save() {
  if (!failed_save_) return;
  run_.log.warning("{}", message_of(std::exchange(failed_save_, nullptr), run_.texts.name_of));
  saves_again_ = true;
}

void SaveSchedule::fail(const std::string& reason) {
  settle();
  throw comm::CommonError(with_newest_checkpoint(reason));
}

std::string SaveSchedule::with_newest_checkpoint(const std::string& reason) const {
  return run_.saver->with_newest_checkpoint(reason);
}

}  // namespace llampi::train
