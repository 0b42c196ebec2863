// SPDX-License-Identifier: Apache-2.0
#include "emulator/faults.hpp"

#include <csignal>
#include <cstdio>
#include <string>

#include <unistd.h>

#include "emulator/block.hpp"
#include "emulator/memory.hpp"
#include "llampi/core/error.hpp"

namespace llampi::emulator {
namespace {

std::string who() {
  if (!in_kernel()) return "host code";
  return fmt::format("thread ({}, {}, {}) of block ({}, {}, {})", threadIdx.x, threadIdx.y, threadIdx.z,
                     blockIdx.x, blockIdx.y, blockIdx.z);
}

std::string what(const void* address) {
  if (const std::string place = device_memory().describe(address); !place.empty())
    return place + " of device memory";
  if (const std::string place = host_memory().describe(address); !place.empty())
    return place + " of host memory";
  return in_kernel()
             ? "memory that is no allocation's (shared memory has an end, and so has a thread's stack)"
             : "memory that is no allocation's";
}

/// The fault is synchronous, so that this may allocate unless the allocator itself is broken. Compiled code
/// stops itself (CMakeLists.txt) where an address is not aligned to what is read or written there.
void explain(int signal, siginfo_t* info, void*) {
  if (signal == SIGSEGV && in_kernel() && allow_write_to_shared(info->si_addr)) return;
  const std::string text =
      signal == SIGSEGV
          ? fmt::format("emulated GPU: {} touches {}\n", who(), what(info->si_addr))
          : fmt::format("emulated GPU: {} reads or writes at an address that is not aligned\n", who());
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) std::perror("write");
  std::signal(signal, SIG_DFL);  // the instruction is repeated, and ends the program
}

}  // namespace

void explain_faults() {
  alignas(16) static std::byte stack[1 << 16];  // the fault may be that there is no stack left
  static bool done = false;
  if (std::exchange(done, true)) return;
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof(stack);
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_sigaction = explain;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGILL, SIGTRAP}) sigaction(signal, &action, nullptr);
}

}  // namespace llampi::emulator
