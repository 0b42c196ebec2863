// SPDX-License-Identifier: Apache-2.0
// llampi report
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/console.hpp"
#include "cli/launch.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/temporary_file.hpp"
#include "llampi/report/page.hpp"
#include "llampi/report/run.hpp"

namespace llampi::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReportUsage = R"(Usage: llampi report RUN_DIR... [--output FILE.html] [--overwrite]

Writes one self-contained HTML page about one or more runs. It shows curves of loss,
evaluation loss, learning rate, gradient norm, speed and memory, where the time went, checkpoints
and restarts, and the configuration. Several runs are compared, with the keys that differ. Reads
the folders of the runs (run.dir) only, while the runs last or afterwards.
)";

struct ReportRequest {
  std::string output;
  bool overwrite = false;
};

std::vector<Option> options_of(ReportRequest& r) {
  return {
      {"output",
       &r.output,
       "the page; default: report.html in the folder of the run, if there is only one",
       {.name = "FILE.html"}},
      {"overwrite",
       &r.overwrite,
       "replace the output file even if it is not a page that llampi report wrote",
       {},
       true},
  };
}

/// Otherwise the sentence would be about a temporary file.
void require_writable_folder(const fs::path& page) {
  const fs::path folder = page.has_parent_path() ? page.parent_path() : ".";
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return;
  throw_user_error("{} cannot be written: {}; write it elsewhere with --output FILE.html", page.string(),
                   std::strerror(errno));
}

fs::path output_of(const ReportRequest& request, const std::vector<std::string>& folders) {
  if (request.output.empty()) {
    if (folders.size() > 1) throw_user_error("report of several runs needs --output FILE.html");
    return fs::path(folders[0]) / "report.html";
  }
  const std::string ending = fs::path(request.output).extension().string();
  if (ending != ".html" && ending != ".htm")  // no file of a run has such a name
    throw_user_error("--output {} does not end in .html; give the page a name that does", request.output);
  return request.output;
}

}  // namespace

Manual report_manual() {
  Manual manual = manual_of<ReportRequest>(kReportUsage);
  manual.takes_files = true;
  return manual;
}

int report_command(const Arguments& arguments) {
  if (!works_alone("report", environment_variable)) return kDone;
  ReportRequest request;
  const Log log = console_log(true, stderr);
  const auto folders =
      assign_command_line(arguments, options_of(request), std::numeric_limits<std::size_t>::max(), log)
          .positional;
  if (folders.empty())
    throw_user_error("report needs the folder of a run (run.dir); see llampi report --help");
  const io::OutputFile output{.path = io::follow_links(output_of(request, folders)),
                              .kind = "a page that llampi report wrote",
                              .is_own = report::is_page,
                              .overwrite = request.overwrite};
  std::vector<report::Run> runs;
  for (const auto& folder : report::folders_of_runs(folders, log)) runs.push_back(report::read_run(folder));
  output.check();
  const std::string text = report::page(runs, unix_seconds());
  io::clear_leftovers(output.path, log);
  require_writable_folder(output.path);
  output.write(text);
  print(fmt::format("{}: {}, {}\n", output.path.string(), count(std::ssize(runs), "run"),
                    format_bytes(static_cast<std::int64_t>(text.size()))));
  return kDone;
}

}  // namespace llampi::cli
