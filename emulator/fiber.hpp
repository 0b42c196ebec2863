// SPDX-License-Identifier: Apache-2.0
// A function that can be left in the middle and entered again: one host thread, many stacks.
#pragma once

#include <ucontext.h>

#include <functional>

#include "emulator/guarded_memory.hpp"

namespace llampi::emulator {

class Fiber {
 public:
  /// Runs a while, and says which fiber runs next: none is back to where start() was called. It is run from the start again
  /// when the fiber is continued after its end. It throws nothing.
  using Body = std::function<Fiber*()>;

  /// Stacks of neighbouring numbers begin at different places of a page.
  Fiber(int number, std::size_t stack_bytes, Body body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs this fiber and all that follow, until one names none. From outside of fibers only.
  void start();
  /// Continues another fiber, or none as a body does, until somebody continues this one. From its body only.
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
