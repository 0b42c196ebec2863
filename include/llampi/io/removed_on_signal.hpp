// SPDX-License-Identifier: Apache-2.0
// What a command that is interrupted leaves.
#pragma once

#include <signal.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

namespace llampi::io {

/// While this lives, SIGINT, SIGTERM and SIGHUP remove these files and end the process. One at a
/// time in a process. A signal that is ignored stays ignored; another handler is replaced meanwhile.
class RemovedOnSignal {
 public:
  explicit RemovedOnSignal(const std::vector<std::filesystem::path>& files);
  ~RemovedOnSignal();
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

  std::vector<std::string> names_;
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace llampi::io
