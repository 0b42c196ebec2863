// SPDX-License-Identifier: Apache-2.0
// A run in a few numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llampi/report/run.hpp"

namespace llampi::report {

/// The rank that waited least for the others, in most of the last steps.
struct SlowRank {
  std::int64_t rank = 0;
  std::int64_t steps = 0, of_steps = 0;  ///< in which it was this one
  double seconds = 0;                    ///< without waiting, in a step: the median where it was the slowest
  double mean_seconds = 0;               ///< of all ranks, in the same steps
};

/// What the traces of several ranks say of their average traced step.
struct TracedRanks {
  std::int64_t first_step = 0, last_step = 0;
  bool is_of_earlier_job = false;  ///< than the last one
  int slowest = 0;                 ///< the rank that computes longest
  double seconds = 0;              ///< that it computes
  double excess = 0;               ///< over the median, as a part of it
};

/// Not a number, 0 and empty where it is not known.
struct Summary {
  std::string
      state;  ///< "running (process 4711 on node7)", "done", "stopped by a signal", "failed: ...", "ended without saying why"
  std::int64_t step = 0, total_steps = 0;
  double loss = 0;            ///< of the last step
  double eval_loss = 0;       ///< of the last evaluation
  double best_eval_loss = 0;  ///< and where it was
  std::int64_t best_eval_step = 0;
  double lr = 0, grad_norm = 0;                             ///< of the last step
  double tokens = 0;                                        ///< labels so far
  double tokens_per_second = 0, mfu = 0, step_seconds = 0;  ///< medians of the last steps
  double memory_bytes = 0;                                  ///< the most so far, in the last job
  double data_share = 0;  ///< of the time of its steps, what they waited for data
  std::optional<SlowRank> slow_rank = {};
  std::optional<TracedRanks> traced = {};
  double seconds_left = 0;  ///< of training; not a number where nothing is left
  // Added up over all steps that metrics.jsonl has:
  double seconds_in_steps = 0, seconds_for_data = 0, seconds_for_checkpoints = 0;
  double seconds_for_ranks = 0;  ///< that a rank waited for others in steps: the mean over the ranks
  double elapsed_seconds = 0;    ///< from the first start to the last line, breaks between jobs included
  std::int64_t jobs = 0, checkpoints = 0;
};

/// @param now seconds since 1970
Summary summarize(const Run& run, double now);

/// train.steps from config.ini, where history.jsonl does not have it.
std::int64_t planned_steps(const Run& run);

}  // namespace llampi::report
