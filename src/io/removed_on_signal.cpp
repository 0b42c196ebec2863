// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/removed_on_signal.hpp"

#include <unistd.h>

#include <atomic>

#include "llampi/core/error.hpp"

namespace llampi::io {
namespace {

/// Null if there are none.
std::atomic<const std::vector<std::string>*> removed_names = nullptr;

/// With what a signal handler may call.
void remove_and_end(int number) {
  if (const auto* const names = removed_names.load()) {
    for (const std::string& name : *names) ::unlink(name.c_str());
  }
  ::signal(number, SIG_DFL);
  ::raise(number);  // when this returns
}

}  // namespace

RemovedOnSignal::RemovedOnSignal(const std::vector<std::filesystem::path>& files) {
  for (const auto& file : files) names_.push_back(std::filesystem::absolute(file).string());
  const std::vector<std::string>* none = nullptr;
  require(removed_names.compare_exchange_strong(none, &names_), "files of two commands to remove");
  struct sigaction action {};
  action.sa_handler = remove_and_end;
  sigfillset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

RemovedOnSignal::~RemovedOnSignal() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  removed_names = nullptr;
}

}  // namespace llampi::io
