// SPDX-License-Identifier: Apache-2.0
#include "emulator/fiber.hpp"

#include <cstdint>
#include <cstdlib>
#include <utility>

namespace llampi::emulator {
namespace {

void* outside[5];  ///< where start() was called

/// A function of its own, as the compiler asks for.
[[noreturn, gnu::noinline]] void jump(void** place) { __builtin_longjmp(place, 1); }

}  // namespace

// The shift: else the stacks of a warp would take the same lines of the cache.
Fiber::Fiber(int number, std::size_t stack_bytes, Body body)
    : stack_(stack_bytes),
      shift_(static_cast<std::size_t>(number) * 13 * 64 % 4096),
      body_(std::move(body)) {}

void Fiber::start() {
  if (__builtin_setjmp(outside) == 0) enter();
}

void Fiber::continue_with(Fiber* next) {
  if (next == this || __builtin_setjmp(here_) != 0) return;
  if (next == nullptr) jump(outside);
  next->enter();
}

void Fiber::enter() {
  if (entered_) jump(here_);
  entered_ = true;
  getcontext(&first_);
  first_.uc_stack.ss_sp = stack_.begin();
  first_.uc_stack.ss_size = stack_.bytes() - shift_;
  first_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);  // makecontext passes only ints
  makecontext(&first_, reinterpret_cast<void (*)()>(&Fiber::first_entry), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  setcontext(&first_);
  std::abort();  // it returns only where it fails
}

void Fiber::first_entry(unsigned high, unsigned low) {
  reinterpret_cast<Fiber*>((static_cast<std::uintptr_t>(high) << 32) | low)->loop();
}

void Fiber::loop() {
  for (;;) continue_with(body_());
}

}  // namespace llampi::emulator
