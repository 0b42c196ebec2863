// SPDX-License-Identifier: Apache-2.0
// llampi top
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/launch.hpp"
#include "cli/terminal.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/report/run.hpp"
#include "llampi/report/screen.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kTopUsage = R"(Usage: llampi top RUN_DIR... [--once] [--interval SECONDS]

Shows the state of runs in the terminal: progress, time left, loss, speed, memory, checkpoints and
curves. Reads the folders of the runs (run.dir) only, while the runs last or afterwards, on any
machine that sees them. q or Ctrl-C ends top, not the runs. Prints once and ends if standard output is not a
terminal.
)";

struct TopRequest {
  bool once = false;
  double interval = 2;
};

std::vector<Option> options_of(TopRequest& r) {
  return {
      {"once", &r.once, "print once and end", {}, true},
      {"interval", &r.interval, "seconds between updates", {.range = {.low = 0.1}, .name = "SECONDS"}},
  };
}

/// The runs below each other, each with its share of the rows; with less than two for each, their first lines alone.
std::vector<std::string> lines_of(std::vector<report::RunReader>& readers, report::Screen screen) {
  const int runs = static_cast<int>(readers.size()), rows = screen.rows;
  const bool has_room = 3 * runs - 1 <= rows;
  screen.rows = has_room ? (rows - (runs - 1)) / runs : 1;
  std::vector<std::string> lines;
  for (auto& reader : readers) {
    const auto shown = std::ssize(lines);
    if (!has_room && runs > rows && shown == rows - 1) {
      lines.push_back(count(runs - shown, "more run"));
      return lines;
    }
    if (has_room && shown > 0) lines.emplace_back();
    auto more = report::screen_lines(reader.run(), screen, unix_seconds());
    std::move(more.begin(), more.end(), std::back_inserter(lines));
  }
  return lines;
}

void follow(std::vector<report::RunReader>& readers, double interval, bool utf8) {
  TerminalView view;
  do {
    for (auto& reader : readers) {
      reader.update();
      reader.read_traces();
    }
    const auto [columns, rows] = terminal_size(stdout);
    auto lines = lines_of(readers, {columns, rows, utf8});
    lines.resize(std::min(lines.size(), static_cast<std::size_t>(rows)));
    view.show(lines);
  } while (view.wait(interval));
}

}  // namespace

Manual top_manual() {
  Manual manual = manual_of<TopRequest>(kTopUsage);
  manual.takes_files = true;
  return manual;
}

int top_command(const Arguments& arguments) {
  if (!works_alone("top", environment_variable)) return kDone;
  TopRequest request;
  const Log log = console_log(true, stderr);
  const auto folders =
      assign_command_line(arguments, options_of(request), std::numeric_limits<std::size_t>::max(), log)
          .positional;
  if (folders.empty()) throw_user_error("top needs the folder of a run (run.dir); see llampi top --help");
  std::vector<report::RunReader> readers;
  for (const auto& folder : report::folders_of_runs(folders, log)) {
    readers.emplace_back(folder);
    readers.back().read_traces();
  }
  const bool utf8 = locale_is_utf8(), is_terminal = ::isatty(STDOUT_FILENO) != 0;
  if (is_terminal && !request.once) {
    follow(readers, request.interval, utf8);
    return kDone;
  }
  report::Screen screen{.utf8 = utf8};
  if (is_terminal) screen.columns = terminal_size(stdout).columns;
  screen.rows = screen.rows * static_cast<int>(readers.size());
  for (const auto& line : lines_of(readers, screen)) print(line + "\n");
  return kDone;
}

}  // namespace llampi::cli
