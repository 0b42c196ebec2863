// SPDX-License-Identifier: Apache-2.0
// The result of tuning for people.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "llampi/core/text.hpp"
#include "llampi/plan/tune.hpp"

namespace llampi::plan {
namespace {

constexpr std::size_t kRows = 5;
constexpr int kStrategyWidth = 37;  // "hybrid_shard_zero2 of a node, ZeRO-1"

/// Gradient accumulation makes no difference where there is nothing to add.
bool is_same_run(const TimedChoice& one, const TimedChoice& other) {
  const auto effective = [](const TimedChoice& timed) {
    Choice choice = timed.choice;
    choice.accumulate_unsharded = choice.accumulate_unsharded && timed.accumulates;
    return choice;
  };
  return effective(one) == effective(other);
}

std::string tuned_row(const char* mark, const TimedChoice& row, double tokens) {
  const Choice& c = row.choice;
  const double waiting = row.time.waiting_seconds();
  std::string text =
      fmt::format("{} {:<{}}{:>12}{:>14}{:>12}{:>8.1f}%  {}", mark, to_string(c.sharding), kStrategyWidth,
                  c.micro_batch, with_separators(tokens / row.time.seconds), format_bytes(row.needed_bytes),
                  100 * waiting / row.time.seconds, fsdp::to_string(c.checkpointing));
  if (offloads_anything(c.offloading)) text += "; offloaded: " + to_string(c.offloading);
  if (c.accumulate_unsharded && row.accumulates) text += "; gradients accumulated unsharded";
  if (c.numbers.fp8) text += "; fp8";
  if (!row.fits) text += "; does not fit";
  return text + "\n";
}

std::string rejected_line(const Tuning& tuning, Rejection why) {
  const auto found = tuning.rejected.find(why);
  if (found == tuning.rejected.end()) return "";
  std::int64_t sum = 0;
  std::vector<std::string> parts;
  for (const auto& [strategy, count] : found->second) {
    sum += count;
    parts.push_back(fmt::format("{} {}", fsdp::to_string(strategy), with_separators(count)));
  }
  return fmt::format("  {:>6} {}: {}\n", with_separators(sum), to_string(why), fmt::join(parts, ", "));
}

/// Each reason once, with all strategies that have it.
std::string impossible_lines(const Tuning& tuning) {
  std::map<std::string, std::vector<const char*>> strategies;
  for (const auto& [strategy, reasons] : tuning.impossible) {
    for (const auto& reason : reasons) strategies[reason].push_back(fsdp::to_string(strategy));
  }
  std::string text;
  for (const auto& [reason, names] : strategies)
    text += fmt::format("  not possible ({}), for example: {}\n", fmt::join(names, ", "), reason);
  return text;
}

}  // namespace

const char* to_string(Rejection rejection) {
  switch (rejection) {
    case Rejection::impossible:
      return "are not possible";
    case Rejection::device_memory:
      return "need more device memory than there is";
    case Rejection::host_memory:
      return "need more host memory than there is";
    case Rejection::offload_not_needed:
      return "offload more than is needed to fit";
    case Rejection::slower:
      return "cannot be faster than the fastest that was predicted, recomputation included";
  }
  return "";
}

std::string to_string(const Sharding& sharding) {
  std::string text = fsdp::to_string(sharding.strategy);
  if (fsdp::is_hybrid(sharding.strategy))
    text += sharding.group_size > 0 ? fmt::format(" of {}", sharding.group_size) : " of a node";
  if (sharding.optimizer_over_replicas) text += ", ZeRO-1";
  return text;
}

std::string to_string(const fsdp::Offload& offloading) {
  std::vector<std::string> parts;
  if (offloading.params) parts.emplace_back("params");
  if (offloading.optimizer && !offloading.params) parts.emplace_back("optimizer");
  if (offloading.host_step) parts.emplace_back("step on the host");
  if (offloading.residuals) parts.emplace_back("residuals");
  return parts.empty() ? "none" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string format_tuning(const Tuning& tuning, const std::optional<TimedChoice>& configured, double tokens,
                          std::int64_t memory_bytes) {
  std::string text = fmt::format("  {:<{}}{:>12}{:>14}{:>12}{:>9}  {}\n", "strategy", kStrategyWidth,
                                 "micro-batch", "tokens/s", "memory", "exposed", "recomputed");
  const auto rows = tuning.best(kRows);
  for (const TimedChoice& row : rows) text += tuned_row(&row == &rows.front() ? ">" : " ", row, tokens);
  const bool same = configured && !rows.empty() && is_same_run(*configured, rows.front());
  if (configured && !same) text += tuned_row("*", *configured, tokens);
  text +=
      "all figures are predicted. > is chosen: of the predicted combinations within 0.1 % of the fastest, it needs least memory";
  if (rows.size() > 1) text += ". The next rows are the fastest of other strategies or shard groups";
  if (std::ranges::any_of(rows,
                          [](const TimedChoice& row) { return row.choice.sharding.optimizer_over_replicas; }))
    text += ". ZeRO-1 is fsdp.shard_optimizer_over_replicas = true";
  if (configured) text += same ? ". A run as configured is the same" : ". * is as configured";
  text += fmt::format(
      "\nmicro-batch: in sequences; memory: per rank{}; exposed: share of the step that waits for communication or copies\n",
      memory_bytes > 0 ? fmt::format(", of {}", format_bytes(memory_bytes))
                       : ", whose limit is not known (--memory), so nothing was left out for it");
  text +=
      fmt::format("\n{}: {} predicted, {} left out\n", count(tuning.candidates, "combination"),
                  with_separators(tuning.candidates - tuning.left_out()), with_separators(tuning.left_out()));
  for (const Rejection why : {Rejection::device_memory, Rejection::host_memory, Rejection::impossible,
                              Rejection::offload_not_needed, Rejection::slower})
    text += rejected_line(tuning, why);
  return text + impossible_lines(tuning);
}

}  // namespace llampi::plan
