// SPDX-License-Identifier: Apache-2.0
// The steps of a run: each with its batch, what the ranks tell each other of it, and what is due after it.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "llampi/comm/first_failure.hpp"
#include "llampi/core/exact_sum.hpp"
#include "llampi/data/loader.hpp"
#include "llampi/device/host_batch.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/train/outcome.hpp"
#include "train/metrics.hpp"
#include "train/not_finite.hpp"
#include "train/open_run.hpp"
#include "train/save_schedule.hpp"
#include "train/step_agreement.hpp"
#include "train/stopping.hpp"
#include "train/trace.hpp"

namespace llampi::train {

class TrainingLoop {
 public:
  /// The run outlives it.
  explicit TrainingLoop(OpenRun& run)
      : run_(run),
        tally_(run.stopping),
        agreement_(run.world),
        traces_(run.world, run.config, run.log),
        not_finite_(run.config.train.not_finite, run.log) {}

  /// From the state of the run to its last step, or until it is told to stop; the state is saved then. Collective.
  /// @throws UserError and CommonError, the same on every rank; anything else on this rank alone
  Outcome train();

 private:
  /// A step of which the ranks have not told each other their losses yet.
  struct UnreportedStep {
    StepMetrics metrics;
    ExactSum losses;      ///< of this rank
    double own_loss = 0;  ///< their sum
    device::Fp8Counts fp8;
    double busy_seconds = 0;   ///< that this rank did not wait for others
    bool scaled_down = false;  ///< an infinite gradient belongs to the search for the loss scale
  };
  using Batches = std::vector<device::HostBatch>;

  Outcome run_steps();
  Batches first_batches(data::Loader& loader);
  Batches next_batches(data::Loader& loader);
  bool step(const Batches& batches, data::Loader& loader, Batches& next);
  std::optional<UnreportedStep> compute_step(std::int64_t step, const Batches& batches,
                                             fsdp::StepInputs inputs);
  bool do_what_is_due();
  Outcome finish();
  Outcome stop();

  // What the ranks tell each other.
  void start_agreement(const Batches& next_batches, double seconds_to_go_on);
  void finish_agreement();
  void report_last_step(const StepFacts& of_all);
  void report_unreported_step();
  void give_steps_time(std::int64_t step);
  bool must_know_now(const StepMetrics& metrics) const;
  bool all_told_to_stop();
  bool steps_are_long() const;
  double seconds_to_go_on(int steps, double step_seconds) const;

  // What follows from a step.
  void note_fp8(StepMetrics& metrics, const device::Fp8Counts& counts);
  void scale_loss(std::int64_t step, bool overflow);
  void check_finite(const UnreportedStep& step);
  bool evaluate_now();

  // Failures of this rank, which the ranks tell each other of at a step: it needs no collective of its own for them.
  void throw_failures();
  [[noreturn]] void end_without_data(const std::exception_ptr& failure);

  OpenRun& run_;
  StopTally tally_;
  StepAgreement agreement_;
  StepTraces traces_;
  NotFiniteSteps not_finite_;
  std::int64_t first_step_ = 0;        ///< that this job runs
  bool has_described_memory_ = false;  ///< after the first step with labels
  double evaluation_seconds_ = 0;      ///< of the slowest so far
  comm::FirstFailure failure_;         ///< of this rank, not yet known to the others
  comm::FirstFailure data_failure_;    ///< likewise, but of reading the data of the step after this one
  SaveSchedule saves_{run_, failure_, not_finite_};
  std::optional<UnreportedStep> unreported_;
  fsdp::StepInputs next_inputs_;     ///< what all ranks know of the next step's batch
  double last_seconds_ = 0;          ///< of the last step, on this rank; 0: there was none
  double slowest_step_seconds_ = 0;  ///< of any rank, in the last step that was reported; 0: none was
  bool has_warned_of_long_steps_ = false;
  bool some_failed_ = false;  ///< some rank had a failure when the ranks last told each other
  bool warned_of_fp8_ = false;
};

}  // namespace llampi::train
