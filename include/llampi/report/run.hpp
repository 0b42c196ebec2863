// SPDX-License-Identifier: Apache-2.0
// What the folder of a run says, read while the run lasts or afterwards: metrics.jsonl, history.jsonl, config.ini,
// running.json and trace/ (docs/formats.md, "Run folder"). Nothing in the folder is changed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llampi/core/log.hpp"
#include "llampi/report/trace_times.hpp"

namespace llampi::report {

/// Values of each optimizer step, all of one length. Not a number: not known, or not finite.
struct Steps {
  std::vector<std::int64_t> step;  ///< from 1
  std::vector<double> time;    ///< seconds since 1970 when it was done; guessed where the line does not say
  std::vector<double> tokens;  ///< labels so far
  std::map<std::string, std::vector<double>>
      values;  ///< by key of metrics.jsonl that is shown: "loss", "lr", ...

  std::size_t size() const { return step.size(); }
  /// Null where no line has it.
  const std::vector<double>* find(const std::string& key) const;
};

struct Evaluations {
  std::vector<std::int64_t> step;
  std::vector<double> time, tokens, loss;
};

/// A line of history.jsonl.
struct HistoryEvent {
  enum class Kind : std::uint8_t { start, checkpoint, end };
  Kind kind;
  double time = 0;
  std::int64_t step = 0;
  double seconds = 0;                                      ///< of a checkpoint: to write it
  std::string text = {};                                   ///< the outcome of an end, with its reason
  std::map<std::string, std::int64_t> planned_bytes = {};  ///< of a start: by kind of memory
  bool weights_only = false;                               ///< a checkpoint from which no run continues
};

struct Run {
  std::filesystem::path folder;
  Steps steps;
  Evaluations evaluations;
  std::vector<HistoryEvent> history;
  std::map<std::string, std::string> config;  ///< of config.ini
  std::map<std::string, std::string> notes;   ///< what files held that it names
  std::vector<RankTimes> trace;               ///< by rank; empty: no traces
  std::string traces_left_out;                ///< TraceTimes::left_out
  double trace_time =
      std::numeric_limits<double>::quiet_NaN();  ///< when the newest one was written, in seconds since 1970
  std::optional<std::string>
      killed_by;  ///< where the last job did not say how it ended: the reason in its flight records
  std::int64_t unreadable_lines = 0;  ///< of metrics.jsonl
  // Of the last start in history.jsonl; 0 and empty where it does not have them.
  std::int64_t total_steps = 0, parameters = 0, ranks = 0, nodes = 0;
  std::string device;
  std::map<std::string, std::int64_t> planned_bytes, used_bytes, peak_bytes;
  std::optional<std::string> running;  ///< which job has the folder now: "process 4711 on node7"
  double running_since = 0;            ///< seconds since 1970; not a number if it is not known

  std::int64_t last_step() const { return steps.step.empty() ? 0 : steps.step.back(); }
};

class LineReader;

/// Follows a run. Takes about 150 bytes for each step.
class RunReader {
 public:
  /// @throws UserError if `folder` is not the folder of a run
  explicit RunReader(std::filesystem::path folder);
  ~RunReader();
  RunReader(RunReader&&) noexcept;
  RunReader& operator=(RunReader&&) noexcept;
  /// Reads what has come since the last time; a last line that is being written counts when it is whole. Where metrics.jsonl was
  /// cut back, as by a run that continues, it is read again. What cannot be read now stays as it was. Traces are read by
  /// read_traces() alone.
  void update();
  /// Those that are new or have changed since.
  void read_traces();
  const Run& run() const { return run_; }
  Run take() && { return std::move(run_); }

 private:
  void read();
  void read_metrics();
  void read_history();
  void read_flight_records();
  std::filesystem::path newest_record(std::string_view kind) const;

  Run run_;
  TraceFiles traces_;
  std::unique_ptr<LineReader> metrics_, history_;
};

/// Those of `folders` that are the folder of a run, for `runs/*` of a shell: the others are named in a warning. All of them if
/// none is, and those that do not exist, stay, and are refused by RunReader.
std::vector<std::filesystem::path> folders_of_runs(const std::vector<std::string>& folders, const Log& log);

/// All of a run. @throws UserError if `folder` is not the folder of a run
Run read_run(const std::filesystem::path& folder);

}  // namespace llampi::report
