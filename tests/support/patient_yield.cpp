// SPDX-License-Identifier: Apache-2.0
// Preloaded into tests (LD_PRELOAD). Ranks of MPI wait for each other in a loop that yields the processor. Where a few processors run many
// ranks, and several tests, such loops take a third of the time from the ranks that work: here they sleep after some turns.
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

extern "C" int sched_yield() noexcept {
  constexpr int kTurns = 20;
  constexpr long kNanoseconds = 50'000;
  thread_local int turns = 0;
  if (++turns < kTurns) return static_cast<int>(syscall(SYS_sched_yield));
  turns = 0;
  const timespec pause{.tv_sec = 0, .tv_nsec = kNanoseconds};
  nanosleep(&pause, nullptr);
  return 0;
}
