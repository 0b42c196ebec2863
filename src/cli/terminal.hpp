// SPDX-License-Identifier: Apache-2.0
// A terminal that shows one view, again and again, until the user ends it.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace llampi::cli {

/// Whether the locale of the environment has UTF-8.
bool locale_is_utf8();

/// While it lives, standard output shows views instead of what it showed, which comes back at the end, and keys arrive one by one.
/// SIGINT, SIGTERM, SIGHUP and SIGQUIT end wait(); Ctrl-Z does nothing.
class TerminalView {
 public:
  TerminalView();
  ~TerminalView();
  TerminalView(const TerminalView&) = delete;
  TerminalView& operator=(const TerminalView&) = delete;

  void show(const std::vector<std::string>& lines);
  /// False if the user ends it: q, Ctrl-C, or the terminal is closed. Returns early when the size of the terminal changes.
  bool wait(double seconds);

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

}  // namespace llampi::cli
