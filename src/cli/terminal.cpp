// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal.hpp"

#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "cli/console.hpp"

namespace llampi::cli {
namespace {

// No cursor, and what is wider than the screen (some characters take two columns) is cut off.
constexpr const char* kOtherScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l";
constexpr const char* kScreenBefore = "\x1b[?7h\x1b[?25h\x1b[?1049l";

volatile std::sig_atomic_t told_to_end = 0;

constexpr std::array kEndings = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

}  // namespace

bool locale_is_utf8() {
  const locale_t locale = ::newlocale(LC_CTYPE_MASK, "", nullptr);
  if (locale == nullptr) return false;  // a name that this machine does not know
  const bool is_utf8 = std::string_view(::nl_langinfo_l(CODESET, locale)) == "UTF-8";
  ::freelocale(locale);
  return is_utf8;
}

struct TerminalView::Before {
  bool has_keys = false;
  termios settings{};
  std::array<struct sigaction, kEndings.size() + 1> actions{};
};

TerminalView::TerminalView() : before_(std::make_unique<Before>()) {
  told_to_end = 0;
  struct sigaction action {};
  action.sa_flags = SA_RESTART;  // what is being written is written; poll() wakes all the same
  action.sa_handler = [](int) { told_to_end = 1; };
  for (std::size_t i = 0; i < kEndings.size(); ++i) ::sigaction(kEndings[i], &action, &before_->actions[i]);
  action.sa_handler = [](int) {};  // only to wake from poll()
  ::sigaction(SIGWINCH, &action, &before_->actions.back());
  if (::isatty(STDIN_FILENO) != 0 && ::tcgetattr(STDIN_FILENO, &before_->settings) == 0) {
    termios one_by_one = before_->settings;
    one_by_one.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    one_by_one.c_cc[VSUSP] = _POSIX_VDISABLE;  // Ctrl-Z would leave the shell this screen
    before_->has_keys = ::tcsetattr(STDIN_FILENO, TCSANOW, &one_by_one) == 0;
  }
  print(kOtherScreen);
}

TerminalView::~TerminalView() {
  try {
    print(kScreenBefore);
  } catch (const std::exception&) {  // the terminal is gone
  }
  if (before_->has_keys) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_->settings);
  for (std::size_t i = 0; i < kEndings.size(); ++i) ::sigaction(kEndings[i], &before_->actions[i], nullptr);
  ::sigaction(SIGWINCH, &before_->actions.back(), nullptr);
}

/// In one piece, each line over what was there: it does not flicker.
void TerminalView::show(const std::vector<std::string>& lines) {
  std::string text = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : "\r\n") + lines[i] + "\x1b[K";
  print(text + "\x1b[J");
}

bool TerminalView::wait(double seconds) {
  pollfd keys{before_->has_keys ? STDIN_FILENO : -1, POLLIN, 0};
  const int ready = ::poll(&keys, 1, static_cast<int>(std::min(seconds, 1e6) * 1000));
  if (told_to_end != 0) return false;
  if (ready <= 0) return ready == 0 || errno == EINTR;
  std::array<char, 64> typed{};
  const auto count = ::read(STDIN_FILENO, typed.data(), typed.size());
  if (count <= 0) return false;
  return std::none_of(typed.begin(), typed.begin() + count,
                      [](char key) { return key == 'q' || key == 'Q'; });
}

}  // namespace llampi::cli
