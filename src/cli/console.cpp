// SPDX-License-Identifier: Apache-2.0
#include "cli/console.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <utility>

#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"

namespace llampi::cli {
namespace {

/// Whether it could be written.
bool write(const std::string& text, std::FILE* stream) {
  return std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0;
}

/// Lines on a terminal, of which the last one may be a line of progress that the next one replaces.
class TerminalLines {
 public:
  explicit TerminalLines(std::FILE* stream) : stream_(stream) {}
  ~TerminalLines() {
    if (!shown_.empty()) write("\n", stream_);
  }
  TerminalLines(const TerminalLines&) = delete;
  TerminalLines& operator=(const TerminalLines&) = delete;

  void info(const std::string& line) {
    const std::lock_guard lock(mutex_);
    write(kClearLine + line + "\n" + shown_, stream_);
  }
  void progress(const std::string& line) {
    const std::lock_guard lock(mutex_);
    shown_ = cut_to_terminal(line, stream_);
    write(kClearLine + shown_, stream_);
  }

 private:
  std::FILE* stream_;
  std::mutex mutex_;  ///< the watchdog's thread logs, too
  std::string shown_;
};

}  // namespace

bool is_terminal(std::FILE* stream) {
  if (isatty(fileno(stream)) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return true;
  const auto target_of = [stream](const std::string& process) {
    std::error_code error;
    return std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", process, fileno(stream)), error)
        .string();
  };
  const std::string target = target_of(std::to_string(getppid()));
  if (target == target_of("self")) return false;  // a script that mpirun has started
  return target.starts_with("/dev/pts/") || target.starts_with("/dev/tty");
}

TerminalSize terminal_size(std::FILE* stream) {
  winsize size{};
  if (::ioctl(::fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

std::string cut_to_terminal(const std::string& line, std::FILE* stream) {
  return line.substr(0, static_cast<std::size_t>(terminal_size(stream).columns - 1));
}

void print(const std::string& text) {
  if (!write(text, stdout))
    throw Error(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
}

void print_summary(const std::string& message) {
  constexpr std::size_t kLongest = 4000;
  std::string text = "llampi: " + message;
  while (text.back() == '\n') text.pop_back();
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  text = replace_controls(text, '?', "\n");  // it may quote a file
  // There may be a line of progress.
  write((is_terminal(stderr) ? kClearLine : "") + text + "\n", stderr);
}

void print_error(const std::string& message) {
  std::string line = message;
  while (line.ends_with('\n')) line.pop_back();
  std::replace(line.begin(), line.end(), '\n', ' ');
  print_summary(line);
}

Log console_log(bool speaks, std::FILE* stream) {
  if (!speaks) return Log();
  if (!is_terminal(stream)) {
    return Log([stream](const std::string& line) { write(line + "\n", stream); },
               [stream](const std::string& line) { write(line + "  " + utc_now() + "\n", stream); });
  }
  const auto terminal = std::make_shared<TerminalLines>(stream);
  return Log([terminal](const std::string& line) { terminal->info(line); },
             [terminal](const std::string& line) { terminal->progress(line); });
}

}  // namespace llampi::cli
