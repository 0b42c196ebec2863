// SPDX-License-Identifier: Apache-2.0
// A function that can be left in the middle and entered again: one host thread, many stacks.
#pragma once

#include <ucontext.h>

#include <functional>

#include "emulator/guarded_memory.hpp"

namespace llampi::emulator {

class Fiber {
 public:
  /// Runs, and returns the fiber to run next; null: return from start(). Called again if the fiber is continued after that. It
  /// throws nothing.
  using Body = std::function<Fiber*()>;

  /// Stacks of neighbouring numbers begin at different places of a page.
  Fiber(int number, std::size_t stack_bytes, Body body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs this fiber and all that follow, until one gives null as the next. From outside of fibers only.
  void start();
  /// Runs another fiber, or returns from start() if it is null; returns when this fiber is continued. From its body only.
  void continue_with(Fiber* next);

 private:
  static void first_entry(unsigned high, unsigned low);
  [[noreturn]] void enter();
  [[noreturn]] void loop();

  GuardedMemory stack_;
  std::size_t shift_;
  Body body_;
  bool entered_ = false;
  ucontext_t first_{};  ///< the first entry; afterwards jumps, which make no system call
  void* here_[5] = {};  ///< five words, as __builtin_setjmp asks for
};

}  // namespace llampi::emulator
