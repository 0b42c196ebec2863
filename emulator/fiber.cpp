// SPDX-License-Identifier: Apache-2.0
#include "emulator/fiber.hpp"

#include <cstdint>

namespace llampi::emulator {
namespace {

/// A function of its own, as the compiler asks for.
[[noreturn, gnu::noinline]] void jump(void** place) { __builtin_longjmp(place, 1); }

}  // namespace

// The shift: else the stacks of a warp would take the same lines of the cache.
Fiber::Fiber(int number, std::size_t stack_bytes, std::function<void()> body)
    : stack_(stack_bytes),
      shift_(static_cast<std::size_t>(number) * 13 * 64 % 4096),
      body_(std::move(body)) {}

void Fiber::resume() {
  if (__builtin_setjmp(caller_) != 0) return;
  if (entered_) jump(here_);
  entered_ = true;
  getcontext(&first_);
  first_.uc_stack.ss_sp = stack_.begin();
  first_.uc_stack.ss_size = stack_.bytes() - shift_;
  first_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);  // makecontext passes only ints
  makecontext(&first_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
  swapcontext(&first_caller_, &first_);
}

void Fiber::pause() {
  if (__builtin_setjmp(here_) == 0) jump(caller_);
}

void Fiber::enter(unsigned high, unsigned low) {
  reinterpret_cast<Fiber*>((static_cast<std::uintptr_t>(high) << 32) | low)->loop();
}

void Fiber::loop() {
  for (;;) {
    body_();
    pause();
  }
}

}  // namespace llampi::emulator
