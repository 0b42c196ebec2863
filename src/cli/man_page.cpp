// SPDX-License-Identifier: Apache-2.0
// llampi man
#include <fmt/format.h>

#include "cli/completion.hpp"
#include "cli/console.hpp"
#include "llampi/core/split.hpp"
#include "llampi/version.hpp"

namespace llampi::cli {
namespace {

constexpr const char* kManUsage = R"(Usage: llampi man

Prints the manual page, which make install also installs. To read it: llampi man | man -l -
)";

constexpr const char* kHead = R"(.SH NAME
llampi \- fully sharded training of Llama, Mistral and Qwen models over MPI
.SH SYNOPSIS
.nf
[\fBmpirun \-n\fR \fIRANKS\fR] \fBllampi\fR \fICOMMAND\fR [\fIOPTIONS\fR]
\fBllampi\fR \fICOMMAND\fR \fB\-\-help\fR
\fBllampi \-\-version\fR
.fi
.SH DESCRIPTION
Trains and fine-tunes Llama, Mistral and Qwen models with fully sharded data parallelism (FSDP), on one machine or on the nodes of a
cluster, on CPUs or on NVIDIA GPUs.
Options are written \fB\-\-name=value\fR or \fB\-\-name value\fR.
)";

constexpr const char* kTail = R"(.SH FILES
A run writes into \fBrun.dir\fR:
.TP
.I config.ini
the resolved configuration, which \fB\-\-config\fR takes
.TP
.I metrics.jsonl
one JSON object per optimizer step and evaluation
.TP
.I checkpoints/
checkpoints in HDF5, one file each
.TP
.I trace/
Chrome traces, one file per rank, where \fBlog.trace\fR asks for them
.SH ENVIRONMENT
.TP
.BI LLAMPI_ SECTION _ KEY
a key of the configuration: LLAMPI_TRAIN_STEPS is \fBtrain.steps\fR. The command line overrides it, and it overrides the file
.TP
.B OMP_NUM_THREADS
threads per rank, where \fBrun.threads\fR is 0
.TP
.B LLAMPI_PLUGIN_DIR
folder of the GPU plugin, if it is not next to the program or in ../lib
.SH EXIT STATUS
.TP
.B 0
success
.TP
.B 1
internal or system error, a lost rank, a loss or gradient that is not finite, replicas that differ, or a failed check of \fBllampi check\fR
.TP
.B 2
invalid input, or the run does not fit; the line that begins with "llampi:" says what is wrong
.TP
.B 75
stopped early with a checkpoint; run the same command again to continue
)";

/// As text that roff prints as it stands.
std::string roff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else if (c == '\'') {
      result += "\\(aq";
    } else if (c == '`') {
      result += "\\(ga";
    } else if (c == '|') {
      result += "|\\:";  // a line may break there
    } else {
      result += c;
    }
  }
  return result.starts_with('.') ? "\\&" + result : result;
}

std::string roff_lines(const std::string& text) {
  std::string result;
  for (const auto& line : lines_of(text)) result += (line.empty() ? ".sp" : roff(line)) + "\n";
  return result;
}

std::string roff_option(const Option& option) {
  std::string text = fmt::format(".TP\n\\fB\\-\\-{}\\fR", roff(option.key));
  if (!option.flag) text += fmt::format("=\\fI{}\\fR", roff(value_name(option)));
  text += "\n" + roff(option.help) + ".";
  const std::string value = option.flag ? "" : value_text(option);
  return text + (value.empty() ? "" : fmt::format(" Default: {}", roff(value))) + "\n";
}

std::string roff_options(const Manual& manual, bool keys) {
  std::string text;
  for (const auto& option : manual.options) {
    if (is_key(option) == keys) text += roff_option(option);
  }
  return text;
}

}  // namespace

std::string man_page(const std::vector<Command>& commands) {
  std::string text = fmt::format(
      ".\\\" SPDX-License-Identifier: Apache-2.0\n.TH LLAMPI 1 \"\" \"llampi {0}\" \"llampi {0}\"\n.ad l\n{1}",
      kVersion, kHead);
  std::string keys;
  text += ".SH COMMANDS\n";
  for (const auto& command : commands) {
    const Manual manual = command.manual();
    text += fmt::format(".SS llampi {}\n.nf\n{}.fi\n{}", command.name, roff_lines(manual.usage),
                        roff_options(manual, false));
    if (keys.empty()) keys = roff_options(manual, true);
  }
  return text +
         ".SH KEYS\nOf the configuration of \\fBllampi train\\fR and \\fBllampi plan\\fR: options, or lines of the file that "
         "\\fB\\-\\-config\\fR names.\n" +
         keys + kTail;
}

Manual man_manual() { return {.usage = kManUsage}; }

int man_command(const Arguments& arguments) {
  assign_command_line(arguments, {}, 0, console_log(true, stderr));
  print(man_page(commands()));
  return kDone;
}

}  // namespace llampi::cli
