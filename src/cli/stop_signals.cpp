// SPDX-License-Identifier: Apache-2.0
#include "cli/stop_signals.hpp"

#include <pthread.h>

#include <csignal>
#include <cstring>
#include <ctime>

#include "llampi/core/error.hpp"
#include "llampi/health/flight_request.hpp"
#include "llampi/train/stop.hpp"
#include "llampi/train/train.hpp"

namespace llampi::cli {
namespace {

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGUSR1, SIGTERM, SIGINT}) sigaddset(&set, number);
  // One that is ignored would be noticed too where it is blocked.
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

/// As if nobody had cared for the signal: the default action, for the whole process.
void end_at_once(int number) {
  std::signal(number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  std::raise(number);
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = stop_signals();
  const int error = pthread_sigmask(SIG_BLOCK, &set, nullptr);
  if (error != 0) throw CallError("pthread_sigmask", std::strerror(error));
  std::signal(SIGPIPE, SIG_IGN);
  thread_ = std::thread([this] { wait_for_signals(); });
}

StopSignals::~StopSignals() {
  done_ = true;
  thread_.join();
}

void StopSignals::wait_for_signals() {
  const sigset_t set = stop_signals();
  constexpr timespec kPatience = {.tv_sec = 0,
                                  .tv_nsec = 100'000'000};  // then it looks whether it is still wanted
  bool interrupted = false;
  while (!done_) {
    const int number = sigtimedwait(&set, nullptr, &kPatience);
    if (number < 0) continue;
    if (number == SIGINT && interrupted) end_at_once(number);
    interrupted = interrupted || number == SIGINT;
    if (number != SIGUSR1) were_to_end_ = true;
    train::request_stop();
    if (number == SIGTERM) health::request_flight_record();
  }
}

}  // namespace llampi::cli
