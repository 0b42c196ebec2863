// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/run.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <system_error>

#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/report/trace_times.hpp"
#include "llampi/train/run_text.hpp"

namespace llampi::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

double number_of(const json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_number() ? value->get<double>() : kUnknown;
}

std::int64_t integer_of(const json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_number_integer() ? value->get<std::int64_t>() : 0;
}

std::string text_of(const json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_string() ? value->get<std::string>() : "";
}

std::map<std::string, std::int64_t> sizes_of(const json& object, const char* key) {
  std::map<std::string, std::int64_t> sizes;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_object()) return sizes;
  for (const auto& [name, bytes] : found->items()) {
    if (bytes.is_number_integer()) sizes[name] = bytes.get<std::int64_t>();
  }
  return sizes;
}

/// Nothing where it cannot be read, as when it is not there.
std::string text_if_there(const fs::path& file) try {
  std::error_code ignored;
  return fs::is_regular_file(file, ignored) ? io::read_whole(file) : "";
} catch (const Error&) {
  return "";
}

/// Calls visit(json) for each whole line that is an object; returns the number of others.
template <class Visitor>
std::int64_t for_each_object(std::string_view text, const Visitor& visit) {
  std::int64_t others = 0;
  for (auto end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    const auto object = json::parse(text.substr(0, end), nullptr, false);
    if (!object.is_object() || !visit(object)) ++others;
    text.remove_prefix(end + 1);
  }
  return others;
}

void add_step(Steps& steps, const json& line) {
  const std::size_t before = steps.size();
  for (const auto& [key, value] : line.items()) {
    if (!(value.is_number() || value.is_null()) || key == "step" || key == "time" || key == "tokens_seen")
      continue;
    auto& values = steps.values[key];
    values.resize(before, kUnknown);
    values.push_back(value.is_number() ? value.get<double>() : kUnknown);
  }
  steps.step.push_back(line["step"].get<std::int64_t>());
  steps.time.push_back(number_of(line, "time"));
  steps.tokens.push_back(number_of(line, "tokens_seen"));
  for (auto& [key, values] : steps.values) values.resize(before + 1, kUnknown);
}

/// Steps of which it is not known when they were done: one after another, up to what is known or `end`.
void guess_times(Steps& steps, double end) {
  const auto* seconds = steps.find("step_seconds");
  double next = end;
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (std::isnan(steps.time[i])) steps.time[i] = next;
    next = steps.time[i] - (seconds != nullptr && (*seconds)[i] > 0 ? (*seconds)[i] : 0);
  }
}

/// The step's that it came after.
void complete(Evaluations& evaluations, const Steps& steps) {
  for (std::size_t e = 0; e < evaluations.step.size(); ++e) {
    const auto found = std::upper_bound(steps.step.begin(), steps.step.end(), evaluations.step[e]);
    if (found == steps.step.begin()) continue;
    const auto i = static_cast<std::size_t>(found - steps.step.begin()) - 1;
    evaluations.tokens[e] = steps.tokens[i];
    if (std::isnan(evaluations.time[e])) evaluations.time[e] = steps.time[i];
  }
}

double modified(const struct stat& status) { return static_cast<double>(status.st_mtim.tv_sec); }

}  // namespace

const std::vector<double>* Steps::find(const std::string& key) const {
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

RunReader::RunReader(fs::path folder) {
  run_.folder = std::move(folder);
  std::error_code ignored;
  if (!fs::exists(run_.folder, ignored))
    throw_user_error("there is no folder {}; give the run.dir of a run", run_.folder.string());
  if (!fs::is_directory(run_.folder, ignored))
    throw_user_error("{} is not a folder; give the run.dir of a run", run_.folder.string());
  if (!fs::is_regular_file(run_.folder / "metrics.jsonl", ignored))
    throw_user_error("{} is not the folder of a run: it has no metrics.jsonl; give the run.dir of a run",
                     run_.folder.string());
  update();
}

void RunReader::update() {
  read_metrics();
  read_history();
  const auto text = train::read_run_text(text_if_there(run_.folder / "config.ini"));
  run_.config = text.values;
  run_.notes = text.notes;
  const auto running = json::parse(text_if_there(run_.folder / "running.json"), nullptr, false);
  run_.running.reset();
  if (running.is_object()) {
    const std::string job = text_of(running, "job");
    run_.running = fmt::format("{}process {} on {}", job.empty() ? "" : job + ", ",
                               integer_of(running, "process"), text_of(running, "host"));
  }
}

void RunReader::read_metrics() {
  const fs::path path = run_.folder / "metrics.jsonl";
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return;  // it is being replaced
  if (status.st_ino != inode_ || status.st_size < bytes_) {
    run_.steps = {};
    run_.evaluations = {};
    run_.unreadable_lines = 0;
    bytes_ = 0;
    inode_ = status.st_ino;
  }
  const auto file = io::PosixFile::open_for_reading(path);
  std::string text(static_cast<std::size_t>(std::max<std::int64_t>(0, status.st_size - bytes_)), '\0');
  text.resize(file.read_at(bytes_, std::as_writable_bytes(std::span(text))));
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0
  bytes_ += static_cast<std::int64_t>(text.size());
  run_.unreadable_lines += for_each_object(text, [&](const json& line) {
    if (!line.contains("step") || !line["step"].is_number_integer()) return false;
    if (!line.contains("eval_loss")) {
      add_step(run_.steps, line);
      return true;
    }
    auto& evaluations = run_.evaluations;
    evaluations.step.push_back(line["step"].get<std::int64_t>());
    evaluations.time.push_back(number_of(line, "time"));
    evaluations.tokens.push_back(0);
    evaluations.loss.push_back(number_of(line, "eval_loss"));
    return true;
  });
  guess_times(run_.steps, modified(status));
  complete(run_.evaluations, run_.steps);
}

void RunReader::read_history() {
  run_.history.clear();
  for_each_object(text_if_there(run_.folder / "history.jsonl"), [&](const json& line) {
    const std::string event = text_of(line, "event");
    using Kind = HistoryEvent::Kind;
    const double time = number_of(line, "time");
    const std::int64_t step = integer_of(line, "step");
    if (event == "start") {
      run_.history.push_back({Kind::start, time, step});
      run_.total_steps = integer_of(line, "total_steps");
      run_.tokens_per_step = integer_of(line, "tokens_per_step");
      run_.parameters = integer_of(line, "parameters");
      run_.ranks = integer_of(line, "ranks");
      run_.nodes = integer_of(line, "nodes");
      run_.device = text_of(line, "device");
      run_.planned_bytes = sizes_of(line, "planned_bytes");
      run_.peak_bytes = sizes_of(line, "peak_bytes");
      run_.used_bytes.clear();
    } else if (event == "memory") {
      run_.used_bytes = sizes_of(line, "used_bytes");
    } else if (event == "checkpoint") {
      run_.history.push_back(
          {Kind::checkpoint, time, step, number_of(line, "seconds"), text_of(line, "file")});
    } else if (event == "end") {
      run_.history.push_back({Kind::end, time, step, 0, text_of(line, "outcome")});
    }
    return true;
  });
}

void RunReader::read_traces() { run_.trace = read_trace_times(run_.folder / "trace"); }

Run read_run(const fs::path& folder) {
  RunReader reader(folder);
  reader.read_traces();
  return reader.run();
}

}  // namespace llampi::report
