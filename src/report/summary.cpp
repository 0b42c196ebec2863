// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "llampi/core/text.hpp"
#include "llampi/report/series.hpp"

namespace llampi::report {
namespace {

constexpr double kNotKnown = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t kRecentSteps = 50;
constexpr double kSilentSeconds = 600;  ///< after which a job that runs is said to be silent

double last_of(const Steps& steps, const char* key) {
  const auto* values = steps.find(key);
  return values == nullptr || values->empty() ? kNotKnown : values->back();
}

/// The first step of the last job that has some: earlier ones may have had other ranks.
std::size_t first_of_job(const Run& run) {
  std::int64_t start = 0;
  for (const auto& event : run.history) {
    if (event.kind == HistoryEvent::Kind::start && event.step < run.last_step()) start = event.step;
  }
  const auto& steps = run.steps.step;
  return static_cast<std::size_t>(std::ranges::upper_bound(steps, start) - steps.begin());
}

/// The first of the last steps, all of them of that job.
std::size_t first_recent(const Run& run) {
  return std::max(first_of_job(run), run.steps.size() - std::min(kRecentSteps, run.steps.size()));
}

double recent_median(const Run& run, const char* key) {
  const auto* values = run.steps.find(key);
  return values == nullptr ? kNotKnown : median(std::span(*values).subspan(first_recent(run)));
}

std::optional<SlowRank> slow_rank_of(const Run& run) {
  const auto* ranks = run.steps.find("slowest_rank");
  const auto* seconds = run.steps.find("slowest_rank_seconds");
  const auto* means = run.steps.find("mean_rank_seconds");
  if (ranks == nullptr || seconds == nullptr || means == nullptr) return std::nullopt;
  const std::size_t begin = first_recent(run);
  struct Where {  // it was the slowest
    std::vector<double> seconds, means;
  };
  std::map<double, Where> steps_of;
  SlowRank slow;
  for (std::size_t i = begin; i < ranks->size(); ++i) {
    if (std::isnan((*ranks)[i])) continue;
    ++slow.of_steps;
    auto& where = steps_of[(*ranks)[i]];
    where.seconds.push_back((*seconds)[i]);
    where.means.push_back((*means)[i]);
  }
  if (steps_of.empty()) return std::nullopt;
  const auto& [rank, where] =
      *std::ranges::max_element(steps_of, {}, [](const auto& entry) { return entry.second.seconds.size(); });
  slow.rank = static_cast<std::int64_t>(rank);
  slow.steps = std::ssize(where.seconds);
  slow.seconds = median(where.seconds);
  slow.mean_seconds = median(where.means);
  return slow;
}

std::optional<TracedRanks> traced_ranks_of(const Run& run) {
  if (run.trace.empty()) return std::nullopt;
  TracedRanks traced{.first_step = std::ranges::min(run.trace, {}, &RankTimes::first_step).first_step,
                     .last_step = std::ranges::max(run.trace, {}, &RankTimes::last_step).last_step};
  for (const auto& event : run.history) {
    if (event.kind == HistoryEvent::Kind::start)
      traced.is_of_earlier_job = event.step >= traced.last_step || run.trace_time < event.time;
  }
  if (run.ranks > 0 && std::ssize(run.trace) > run.ranks) traced.is_of_earlier_job = true;  // which had more
  std::vector<double> compute;
  for (const auto& rank : run.trace) compute.push_back(rank.compute);
  const auto& slowest = *std::ranges::max_element(run.trace, {}, &RankTimes::compute);
  traced.slowest = slowest.rank;
  traced.seconds = slowest.compute;
  traced.excess = slowest.compute / median(compute) - 1;
  return traced;
}

double sum_of(const Steps& steps, const char* key, std::size_t first = 0) {
  const auto* values = steps.find(key);
  double sum = 0;
  if (values == nullptr) return sum;
  for (const double value : std::span(*values).subspan(first)) sum += std::isnan(value) ? 0 : value;
  return sum;
}

/// What the ranks waited for each other, where the steps say it.
double sum_of_waits(const Steps& steps) {
  const auto* seconds = steps.find("step_seconds");
  const auto* busy = steps.find("mean_rank_seconds");
  if (seconds == nullptr || busy == nullptr) return kNotKnown;
  double sum = 0;
  for (std::size_t i = 0; i < busy->size(); ++i) {
    const double wait = (*seconds)[i] - (*busy)[i];
    if (wait > 0) sum += wait;  // false where one of them is not known
  }
  return sum;
}

double last_time(const Run& run) {
  double time = run.steps.time.empty() ? kNotKnown : run.steps.time.back();
  if (!run.history.empty()) time = std::fmax(time, run.history.back().time);
  return time;
}

std::string state_of(const Run& run, double now) {
  const double silent = now - std::fmax(last_time(run), run.running_since);  // it may have just begun
  if (run.running && silent > kSilentSeconds)
    return fmt::format("no output for {} (last: {})", format_duration(silent), *run.running);
  if (run.running) return fmt::format("running ({})", *run.running);
  if (run.history.empty())
    return run.steps.size() > 0 && run.last_step() == planned_steps(run) ? "done" : "not running";
  const auto& last = run.history.back();
  if (last.kind == HistoryEvent::Kind::end) return last.text;
  if (last.kind == HistoryEvent::Kind::checkpoint && last.step == planned_steps(run))
    return "done";  // only the last line is missing
  return run.killed_by ? fmt::format("ended: {} (flight records)", *run.killed_by)
                       : "ended without reporting a reason";
}

}  // namespace

std::int64_t planned_steps(const Run& run) {
  if (run.total_steps > 0) return run.total_steps;
  const auto found = run.config.find("train.steps");
  return found != run.config.end() ? parse_number<std::int64_t>(found->second).value_or(0) : 0;
}

Summary summarize(const Run& run, double now) {
  Summary s;
  s.state = state_of(run, now);
  s.step = run.last_step();
  s.total_steps = planned_steps(run);
  s.loss = last_of(run.steps, "loss");
  s.lr = last_of(run.steps, "lr");
  s.grad_norm = last_of(run.steps, "grad_norm");
  s.tokens = run.steps.tokens.empty() ? 0 : run.steps.tokens.back();
  s.tokens_per_second = recent_median(run, "tokens_per_second");
  s.step_seconds = recent_median(run, "step_seconds");
  s.mfu = recent_median(run, "mfu");
  s.slow_rank = slow_rank_of(run);
  s.traced = traced_ranks_of(run);
  const auto* memory = run.steps.find("memory_bytes");
  const std::size_t of_job = first_of_job(run);
  s.memory_bytes = memory == nullptr ? kNotKnown : bounds_of(std::span(*memory).subspan(of_job)).high;
  s.data_share = sum_of(run.steps, "data_seconds", of_job) / sum_of(run.steps, "step_seconds", of_job);
  const auto& losses = run.evaluations.loss;
  s.eval_loss = losses.empty() ? kNotKnown : losses.back();
  s.best_eval_loss = kNotKnown;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (std::isnan(losses[i]) || losses[i] >= s.best_eval_loss) continue;  // false for the first
    s.best_eval_loss = losses[i];
    s.best_eval_step = run.evaluations.step[i];
  }
  s.seconds_left = kNotKnown;
  if (s.total_steps > s.step && s.step_seconds > 0)
    s.seconds_left = s.step_seconds * static_cast<double>(s.total_steps - s.step);
  s.seconds_in_steps = sum_of(run.steps, "step_seconds");
  s.seconds_for_data = sum_of(run.steps, "data_seconds");
  s.seconds_for_ranks = sum_of_waits(run.steps);
  s.seconds_for_checkpoints = sum_of(run.steps, "checkpoint_stall_seconds");
  const auto* seconds = run.steps.find("step_seconds");
  double first = run.steps.time.empty()
                     ? kNotKnown
                     : run.steps.time.front() - (seconds == nullptr ? 0 : seconds->front());
  for (const auto& event : run.history) {
    first = std::fmin(first, event.time);
    if (event.kind == HistoryEvent::Kind::start) ++s.jobs;
    if (event.kind == HistoryEvent::Kind::checkpoint) ++s.checkpoints;
  }
  s.elapsed_seconds = last_time(run) - first;
  return s;
}

}  // namespace llampi::report
