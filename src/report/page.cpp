// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/page.hpp"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/report/series.hpp"
#include "llampi/report/summary.hpp"
#include "report/assets.hpp"

namespace llampi::report {
namespace {

namespace fs = std::filesystem;
using Value = nlohmann::ordered_json;

constexpr std::size_t kMostPoints = 4000;
constexpr std::string_view kMark = "<meta name=\"generator\" content=\"llampi report\">";

/// Nine digits, as metrics.jsonl has them; more would only make the page larger.
double rounded(double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const double scale = std::pow(10, 8 - std::floor(std::log10(std::abs(value))));
  const double result = std::round(value * scale) / scale;
  return std::isfinite(result) ? result : value;
}

/// What is no number becomes null.
Value numbers(const std::vector<double>& values) {
  Value list = Value::array();
  for (const double value : values) list.push_back(std::isfinite(value) ? Value(rounded(value)) : Value());
  return list;
}

/// Seconds since 1970, to the millisecond.
Value times(const std::vector<double>& values) {
  Value list = Value::array();
  for (const double value : values) list.push_back(std::round(value * 1e3) / 1e3);
  return list;
}

std::vector<double> as_numbers(const std::vector<std::int64_t>& values) {
  return {values.begin(), values.end()};
}

/// A step is where its group ends.
Value steps_of(const Run& run) {
  const auto& steps = run.steps;
  const std::size_t group = group_size(steps.size(), kMostPoints);
  Value values = Value::object();
  for (const auto& [key, all] : steps.values) {
    const Thinned thinned = thin(all, group);
    Value& curve = values[key];
    curve["mean"] = numbers(thinned.mean);
    if (group == 1) continue;
    curve["low"] = numbers(thinned.low);
    curve["high"] = numbers(thinned.high);
  }
  return {{"group", group},
          {"step", numbers(ends_of_groups(as_numbers(steps.step), group))},
          {"tokens", numbers(ends_of_groups(steps.tokens, group))},
          {"time", times(ends_of_groups(steps.time, group))},
          {"values", values}};
}

Value evaluations_of(const Run& run) {
  const auto& evaluations = run.evaluations;
  return {{"step", numbers(as_numbers(evaluations.step))},
          {"tokens", numbers(evaluations.tokens)},
          {"time", times(evaluations.time)},
          {"loss", numbers(evaluations.loss)}};
}

Value events_of(const Run& run) {
  Value events = Value::array();
  for (const auto& event : run.history) {
    const char* kinds[] = {"start", "checkpoint", "end"};
    events.push_back({{"kind", kinds[static_cast<int>(event.kind)]},
                      {"step", event.step},
                      {"time", event.time},
                      {"seconds", event.seconds},
                      {"text", event.text}});
  }
  return events;
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

Value known(double value) { return std::isfinite(value) ? Value(value) : Value(); }

Value summary_of(const Summary& s) {
  return {{"state", s.state},
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
          {"events", events_of(run)},
          {"memory", {{"planned", run.planned_bytes}, {"used", run.used_bytes}, {"peak", run.peak_bytes}}},
          {"trace", trace_of(run)},
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
  std::string text = value.dump(-1, ' ', false, Value::error_handler_t::replace);
  replace_all(text, "<", "\\u003c");
  return text;
}

/// Replaces the first `place` at or after `from`. Returns where what comes after it begins, which is not what was put there.
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
