// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/page.hpp"

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/json_text.hpp"
#include "llampi/report/series.hpp"
#include "llampi/report/summary.hpp"
#include "report/assets.hpp"

namespace llampi::report {
namespace {

namespace fs = std::filesystem;
using Value = nlohmann::ordered_json;

constexpr std::size_t kMostPoints = 4000;  // of a curve
constexpr std::size_t kMostMarks = 1000;  // evaluations and checkpoints: each is an element in several charts
constexpr std::string_view kMark = "<meta name=\"generator\" content=\"llampi report\">";

// Digits of the values of metrics.jsonl, of means of them, and of the ends of a band. More would only make the page larger.
constexpr int kDigits = 9, kDigitsOfMeans = 6, kDigitsOfBands = 4;

double rounded(double value, int digits) {
  if (!std::isfinite(value) || value == 0) return value;
  const double scale = std::pow(10, digits - 1 - std::floor(std::log10(std::abs(value))));
  const double result = std::round(value * scale) / scale;
  return std::isfinite(result) ? result : value;
}

/// What is no number becomes null.
Value numbers(const std::vector<double>& values, int digits) {
  Value list = Value::array();
  for (const double value : values)
    list.push_back(std::isfinite(value) ? Value(rounded(value, digits)) : Value());
  return list;
}

Value known(double value) { return std::isfinite(value) ? Value(value) : Value(); }

/// Seconds since 1970, to the millisecond.
Value times(const std::vector<double>& values) {
  Value list = Value::array();
  for (const double value : values) list.push_back(std::round(value * 1e3) / 1e3);
  return list;
}

/// Where groups of values end on the axes. They are exact.
Value ends(const std::vector<double>& values, std::size_t group) {
  return numbers(ends_of_groups(values, group), std::numeric_limits<double>::max_digits10);
}

Value ends(const std::vector<std::int64_t>& values, std::size_t group) {
  return ends(std::vector<double>(values.begin(), values.end()), group);
}

int digits_of_means(std::size_t group) { return group == 1 ? kDigits : kDigitsOfMeans; }

/// A step is where its group ends.
Value steps_of(const Run& run) {
  const auto& steps = run.steps;
  const std::size_t group = group_size(steps.size(), kMostPoints);
  Value values = Value::object();
  for (const auto& [key, all] : steps.values) {
    if (key == "slowest_rank") continue;  // a number of a rank has no curve
    const Thinned thinned = thin(all, group);
    Value& curve = values[key];
    curve["mean"] = numbers(thinned.mean, digits_of_means(group));
    if (group == 1) continue;
    curve["low"] = numbers(thinned.low, kDigitsOfBands);
    curve["high"] = numbers(thinned.high, kDigitsOfBands);
  }
  return {{"group", group},
          {"step", ends(steps.step, group)},
          {"tokens", ends(steps.tokens, group)},
          {"time", times(ends_of_groups(steps.time, group))},
          {"values", values}};
}

Value evaluations_of(const Run& run) {
  const auto& evaluations = run.evaluations;
  const std::size_t group = group_size(evaluations.step.size(), kMostMarks);
  return {{"group", group},
          {"step", ends(evaluations.step, group)},
          {"tokens", ends(evaluations.tokens, group)},
          {"time", times(ends_of_groups(evaluations.time, group))},
          {"loss", numbers(thin(evaluations.loss, group).mean, digits_of_means(group))}};
}

/// Starts and ends of jobs. A start has its memory plan, and each the number of checkpoints until the next event with their mean time.
Value jobs_of(const Run& run) {
  Value jobs = Value::array();
  double seconds = 0;
  for (const auto& event : run.history) {
    if (event.kind == HistoryEvent::Kind::checkpoint) {
      if (jobs.empty()) continue;
      const auto count = jobs.back()["checkpoints"].get<std::int64_t>() + 1;
      seconds += event.seconds;
      jobs.back()["checkpoints"] = count;
      jobs.back()["checkpoint_seconds"] = known(seconds / static_cast<double>(count));
      continue;
    }
    seconds = 0;
    jobs.push_back({{"kind", event.kind == HistoryEvent::Kind::start ? "start" : "end"},
                    {"step", event.step},
                    {"time", known(event.time)},
                    {"checkpoints", 0},
                    {"outcome", event.text}});
    if (!event.planned_bytes.empty()) jobs.back()["planned"] = event.planned_bytes;
  }
  return jobs;
}

/// At most kMostMarks: of more checkpoints, the last one of each group.
Value checkpoints_of(const Run& run) {
  std::vector<double> steps, saved;
  for (const auto& event : run.history) {
    if (event.kind != HistoryEvent::Kind::checkpoint) continue;
    steps.push_back(static_cast<double>(event.step));
    saved.push_back(event.time);
  }
  const std::size_t group = group_size(steps.size(), kMostMarks);
  return {{"group", group}, {"step", ends(steps, group)}, {"time", times(ends_of_groups(saved, group))}};
}

Value trace_of(const Run& run) {
  Value ranks = Value::array();
  for (const auto& rank : run.trace) {
    ranks.push_back({{"rank", rank.rank},
                     {"steps", rank.steps},
                     {"step", rank.step},
                     {"compute", rank.compute},
                     {"communication", rank.communication},
                     {"exposed", rank.exposed},
                     {"copies", rank.copies},
                     {"operations", rank.operations}});
  }
  return ranks;
}

Value slow_rank_of(const std::optional<SlowRank>& slow) {
  if (!slow) return {};
  return {{"rank", slow->rank},
          {"steps", slow->steps},
          {"of_steps", slow->of_steps},
          {"seconds", known(slow->seconds)},
          {"mean_seconds", known(slow->mean_seconds)}};
}

Value traced_of(const std::optional<TracedRanks>& traced) {
  if (!traced) return {};
  return {{"first_step", traced->first_step},
          {"last_step", traced->last_step},
          {"is_of_earlier_job", traced->is_of_earlier_job},
          {"slowest", traced->slowest},
          {"excess", known(traced->excess)}};
}

Value summary_of(const Summary& s) {
  return {{"state", s.state},
          {"slow_rank", slow_rank_of(s.slow_rank)},
          {"traced", traced_of(s.traced)},
          {"step", s.step},
          {"total_steps", s.total_steps},
          {"loss", known(s.loss)},
          {"eval_loss", known(s.eval_loss)},
          {"best_eval_loss", known(s.best_eval_loss)},
          {"best_eval_step", s.best_eval_step},
          {"tokens", known(s.tokens)},
          {"tokens_per_second", known(s.tokens_per_second)},
          {"step_seconds", known(s.step_seconds)},
          {"mfu", known(s.mfu)},
          {"memory_bytes", known(s.memory_bytes)},
          {"elapsed_seconds", known(s.elapsed_seconds)},
          {"seconds_in_steps", known(s.seconds_in_steps)},
          {"seconds_for_data", known(s.seconds_for_data)},
          {"seconds_for_ranks", known(s.seconds_for_ranks)},
          {"seconds_for_checkpoints", known(s.seconds_for_checkpoints)},
          {"jobs", s.jobs},
          {"checkpoints", s.checkpoints}};
}

Value run_of(const Run& run, double now) {
  return {{"name", run.folder.string()},
          {"summary", summary_of(summarize(run, now))},
          {"ranks", run.ranks},
          {"nodes", run.nodes},
          {"device", run.device},
          {"parameters", run.parameters},
          {"steps", steps_of(run)},
          {"evaluations", evaluations_of(run)},
          {"jobs", jobs_of(run)},
          {"checkpoints", checkpoints_of(run)},
          {"memory", {{"planned", run.planned_bytes}, {"used", run.used_bytes}, {"peak", run.peak_bytes}}},
          {"trace", trace_of(run)},
          {"traces_left_out", run.traces_left_out},
          {"config", run.config},
          {"notes", run.notes},
          {"unreadable_lines", run.unreadable_lines}};
}

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
}

std::string escaped(std::string text) {
  replace_all(text, "&", "&amp;");
  replace_all(text, "<", "&lt;");
  replace_all(text, ">", "&gt;");
  return text;
}

/// JSON that may stand in a script element: nothing in it ends the element or begins a comment.
std::string script_safe(const Value& value) {
  std::string text = json_text(value);
  replace_all(text, "<", "\\u003c");
  return text;
}

/// Replaces the first `place` at or after `from`. Returns the position after the inserted text.
std::size_t fill(std::string& text, std::size_t from, std::string_view place, std::string_view with) {
  const auto at = text.find(place, from);
  if (at == std::string::npos)
    throw Error("internal error: the page of a report has no place for a part of it");
  text.replace(at, place.size(), with);
  return at + with.size();
}

}  // namespace

std::string page(std::span<const Run> runs, double now) {
  Value data{{"made", utc_now()}, {"runs", Value::array()}};
  std::string title = "llampi report";
  for (const auto& run : runs) {
    data["runs"].push_back(run_of(run, now));
    title += (data["runs"].size() == 1 ? ": " : ", ") + run.folder.string();
  }
  std::string text(kPageHtml);
  std::size_t at = fill(text, 0, "<!-- title -->", escaped(title));
  at = fill(text, at, "/* page.css */", kPageCss);
  at = fill(text, at, "/* data */", script_safe(data));
  fill(text, at, "/* page.js */", kPageJs);
  return text;
}

bool is_page(const fs::path& file) {
  std::string beginning(1024, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  beginning.resize(static_cast<std::size_t>(in.gcount()));
  return beginning.find(kMark) != std::string::npos;
}

}  // namespace llampi::report
