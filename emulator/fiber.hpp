// SPDX-License-Identifier: Apache-2.0
// A function that can be left in the middle and entered again: one host thread, many stacks.
#pragma once

#include <ucontext.h>

#include <functional>

#include "emulator/guarded_memory.hpp"

namespace llampi::emulator {

class Fiber {
 public:
  /// Stacks of neighbouring numbers begin at different places of a page. `body` is run from the start again
  /// when it has ended and the fiber is resumed once more. It throws nothing.
  Fiber(int number, std::size_t stack_bytes, std::function<void()> body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the fiber until it pauses or its body ends. From outside of fibers only.
  void resume();
  /// Goes back to where the fiber was resumed. From its body only.
  void pause();

 private:
  static void enter(unsigned high, unsigned low);
  void loop();

  GuardedMemory stack_;
  std::size_t shift_;
  std::function<void()> body_;
  bool entered_ = false;
  ucontext_t first_caller_{}, first_{};   ///< the first entry; afterwards jumps, which make no system call
  void *here_[5] = {}, *caller_[5] = {};  ///< five words, as __builtin_setjmp asks for
};

}  // namespace llampi::emulator
