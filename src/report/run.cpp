// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/run.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/health/flight_record.hpp"
#include "llampi/io/folders.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/train/lock_holder.hpp"
#include "llampi/train/run_text.hpp"
#include "report/line_reader.hpp"

namespace llampi::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Keys of metrics.jsonl that are shown. Others take no memory.
constexpr const char* kCurves[] = {"loss",
                                   "lr",
                                   "grad_norm",
                                   "tokens_per_second",
                                   "mfu",
                                   "step_seconds",
                                   "data_seconds",
                                   "checkpoint_stall_seconds",
                                   "memory_bytes",
                                   "gpu_process_bytes",
                                   "loss_scale",
                                   "fp8_saturated",
                                   "fp8_zero_scale",
                                   "slowest_rank",
                                   "slowest_rank_seconds",
                                   "mean_rank_seconds"};

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

void add_step(Steps& steps, const json& line) {
  const std::size_t before = steps.size();
  for (const char* const key : kCurves) {
    if (!line.contains(key)) continue;
    auto& values = steps.values[key];
    values.resize(before, kUnknown);
    values.push_back(number_of(line, key));
  }
  steps.step.push_back(line["step"].get<std::int64_t>());
  steps.time.push_back(number_of(line, "time"));
  steps.tokens.push_back(number_of(line, "tokens_seen"));
  for (auto& [key, values] : steps.values) values.resize(before + 1, kUnknown);
}

/// Fills in unknown end times of steps, backwards: each ends when the next one began, the last one at `end`.
void guess_times(Steps& steps, double end) {
  const auto* seconds = steps.find("step_seconds");
  double next = end;
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (std::isnan(steps.time[i])) steps.time[i] = next;
    next = steps.time[i] - (seconds != nullptr && (*seconds)[i] > 0 ? (*seconds)[i] : 0);
  }
}

/// Fills in tokens, and a time that is unknown, from the step that each evaluation followed.
void complete(Evaluations& evaluations, const Steps& steps) {
  for (std::size_t e = 0; e < evaluations.step.size(); ++e) {
    const auto found = std::upper_bound(steps.step.begin(), steps.step.end(), evaluations.step[e]);
    if (found == steps.step.begin()) continue;
    const auto i = static_cast<std::size_t>(found - steps.step.begin()) - 1;
    evaluations.tokens[e] = steps.tokens[i];
    if (std::isnan(evaluations.time[e])) evaluations.time[e] = steps.time[i];
  }
}

double modified(const fs::path& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 ? static_cast<double>(status.st_mtim.tv_sec) : unix_seconds();
}

/// "done", "stopped by a signal", or "failed: loss or gradient not finite".
std::string outcome_of(const json& line) {
  const std::string reason = text_of(line, "reason");
  std::string outcome = text_of(line, "outcome");
  if (!reason.empty())
    outcome += (outcome == "stopped" ? " " : ": ") +
               (reason == "not_finite" ? "loss or gradient not finite" : reason);
  return outcome;
}

/// Of checkpoints with all state later than the step at which a job starts, it has found none: they are gone. One that starts at the
/// beginning though there were some is another run.
void drop_lost(std::vector<HistoryEvent>& history, std::int64_t start_step) {
  const auto is_gone = [&](const HistoryEvent& event) {
    return event.kind == HistoryEvent::Kind::checkpoint && !event.weights_only && event.step > start_step;
  };
  if (start_step == 0 && std::ranges::any_of(history, is_gone)) history.clear();
  std::erase_if(history, is_gone);
}

/// A line of history.jsonl.
void add_event(Run& run, const json& line) {
  using Kind = HistoryEvent::Kind;
  const std::string event = text_of(line, "event");
  const double time = number_of(line, "time");
  const std::int64_t step = integer_of(line, "step");
  if (event == "start") {
    run.total_steps = integer_of(line, "total_steps");
    run.parameters = integer_of(line, "parameters");
    run.ranks = integer_of(line, "ranks");
    run.nodes = integer_of(line, "nodes");
    run.device = text_of(line, "device");
    run.planned_bytes = sizes_of(line, "planned_bytes");
    drop_lost(run.history, step);
    run.history.push_back({Kind::start, time, step, 0, "", run.planned_bytes});
    run.peak_bytes = sizes_of(line, "peak_bytes");
    run.used_bytes.clear();
  } else if (event == "memory") {
    run.used_bytes = sizes_of(line, "used_bytes");
  } else if (event == "checkpoint") {
    // Saved again, a step has the last one.
    std::erase_if(run.history,
                  [&](const auto& other) { return other.kind == Kind::checkpoint && other.step == step; });
    run.history.push_back({.kind = Kind::checkpoint,
                           .time = time,
                           .step = step,
                           .seconds = number_of(line, "seconds"),
                           .weights_only = text_of(line, "content") == "weights"});
  } else if (event == "end") {
    run.history.push_back({Kind::end, time, step, 0, outcome_of(line)});
  }
}

/// Of one that is starting, too, which has written nothing yet.
bool is_of_run(const fs::path& folder) {
  return io::type_of(folder / "metrics.jsonl") == fs::file_type::regular ||
         train::running_job(folder).has_value();
}

}  // namespace

const std::vector<double>* Steps::find(const std::string& key) const {
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

RunReader::RunReader(fs::path folder)
    : metrics_(std::make_unique<LineReader>(folder / "metrics.jsonl")),
      history_(std::make_unique<LineReader>(folder / "history.jsonl")) {
  run_.folder = std::move(folder);
  const auto type = io::type_of(run_.folder);
  if (type == fs::file_type::not_found)
    throw_user_error("there is no folder {}; give the run.dir of a run", run_.folder.string());
  if (type != fs::file_type::directory)
    throw_user_error("{} is not a folder; give the run.dir of a run", run_.folder.string());
  if (!is_of_run(run_.folder))
    throw_user_error("{} is not the folder of a run: it has no metrics.jsonl; give the run.dir of a run",
                     run_.folder.string());
  read();
}

RunReader::~RunReader() = default;
RunReader::RunReader(RunReader&&) noexcept = default;
RunReader& RunReader::operator=(RunReader&&) noexcept = default;

void RunReader::update() try {
  read();
} catch (const Error&) {  // it is being replaced, or its file server does not answer: the next time, then
}

void RunReader::read() {
  read_metrics();
  read_history();
  const auto text = train::read_run_text(text_if_there(run_.folder / "config.ini"));
  run_.config = text.values;
  run_.notes = text.notes;
  const auto job = train::running_job(run_.folder);
  run_.running = job ? std::optional(to_string(*job)) : std::nullopt;
  run_.running_since = job ? seconds_of_utc(job->since) : kUnknown;
  read_flight_records();
}

void RunReader::read_metrics() {
  if (io::type_of(run_.folder / "metrics.jsonl") == fs::file_type::not_found) return;
  const auto restart = [this] {
    run_.steps = {};
    run_.evaluations = {};
    run_.unreadable_lines = 0;
  };
  metrics_->read(restart, [this](std::string_view text) {
    const auto line = json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) {
      ++run_.unreadable_lines;
    } else if (!line.contains("eval_loss")) {
      add_step(run_.steps, line);
    } else {
      auto& evaluations = run_.evaluations;
      evaluations.step.push_back(line["step"].get<std::int64_t>());
      evaluations.time.push_back(number_of(line, "time"));
      evaluations.tokens.push_back(0);
      evaluations.loss.push_back(number_of(line, "eval_loss"));
    }
  });
  guess_times(run_.steps, modified(run_.folder / "metrics.jsonl"));
  complete(run_.evaluations, run_.steps);
}

/// Without it, or where it cannot be read, what it said before stays.
void RunReader::read_history() try {
  std::error_code ignored;
  if (!fs::is_regular_file(run_.folder / "history.jsonl", ignored)) return;
  history_->read([this] { run_.history.clear(); },
                 [this](std::string_view text) {
                   const auto line = json::parse(text, nullptr, false);
                   if (line.is_object()) add_event(run_, line);
                 });
} catch (const Error&) {
}

/// Of the newest of the last job; those of an earlier one may still be there. When the watchdog ends a job, ranks that did not hear of
/// it are told to terminate by mpirun, and write that a little later: it is the reason only where there is no other.
void RunReader::read_flight_records() {
  run_.killed_by.reset();
  const auto is_start = [](const HistoryEvent& event) { return event.kind == HistoryEvent::Kind::start; };
  const auto start = std::find_if(run_.history.rbegin(), run_.history.rend(), is_start);
  if (run_.running || start == run_.history.rend() || run_.history.back().kind == HistoryEvent::Kind::end)
    return;
  const double last_line =
      std::fmax(run_.history.back().time, run_.steps.time.empty() ? 0 : run_.steps.time.back());
  for (const char* kind : {"rank-", "terminated-"}) {
    const auto record = json::parse(text_if_there(newest_record(kind)), nullptr, false);
    if (!record.is_object() || text_of(record, "reason").empty()) continue;
    // Of an alarm that has passed there is one too, and the job has written since.
    constexpr double kSecond = 1;  // it has whole ones
    if (seconds_of_utc(text_of(record, "written")) + kSecond < last_line) continue;
    run_.killed_by = text_of(record, "reason");
    return;
  }
}

/// Of the files of `flight` with names that begin so; empty: there is none.
fs::path RunReader::newest_record(std::string_view kind) const {
  fs::path newest;
  fs::file_time_type newest_time = fs::file_time_type::min();
  std::error_code ignored;
  for (const auto& file : io::entries_of(run_.folder / health::kFlightFolder, ignored)) {
    const auto time = fs::last_write_time(file, ignored);
    const bool is_one = file.filename().string().starts_with(kind) && file.extension() == ".json";
    if (!is_one || time <= newest_time) continue;
    newest = file;
    newest_time = time;
  }
  return newest;
}

void RunReader::read_traces() {
  TraceFiles traces = find_traces(run_.folder / "trace");
  if (traces == traces_) return;
  traces_ = std::move(traces);
  TraceTimes times = read_trace_times(traces_);
  run_.trace = std::move(times.ranks);
  run_.traces_left_out = std::move(times.left_out);
  run_.trace_time = kUnknown;
  for (const auto& file : traces_.files) {
    const auto since_1970 = std::chrono::file_clock::to_sys(file.changed).time_since_epoch();
    run_.trace_time = std::fmax(run_.trace_time, std::chrono::duration<double>(since_1970).count());
  }
}

std::vector<fs::path> folders_of_runs(const std::vector<std::string>& folders, const Log& log) {
  std::vector<fs::path> runs(folders.begin(), folders.end());
  const auto others = std::stable_partition(runs.begin(), runs.end(), [](const fs::path& path) {
    return io::type_of(path) == fs::file_type::not_found || is_of_run(path);
  });
  if (others == runs.begin()) return runs;
  for (auto other = others; other != runs.end(); ++other)
    log.warning("{} is left out: it is not the folder of a run (run.dir)", other->string());
  runs.erase(others, runs.end());
  return runs;
}

Run read_run(const fs::path& folder) {
  RunReader reader(folder);
  reader.read_traces();
  return std::move(reader).take();
}

}  // namespace llampi::report
