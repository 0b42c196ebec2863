#include "emulation/fiber.hpp"

#include <cstdint>

namespace llampi::emulation {

Fiber::Fiber(std::size_t stack_bytes, std::function<void()> body)
    : stack_(stack_bytes), body_(std::move(body)) {}

void Fiber::resume() {
  if (_setjmp(caller_) != 0) return;
  if (entered_) _longjmp(here_, 1);
  entered_ = true;
  getcontext(&first_);
  first_.uc_stack.ss_sp = stack_.begin();
  first_.uc_stack.ss_size = stack_.bytes();
  first_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);  // makecontext passes only ints
  makecontext(&first_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self >> 32),
              static_cast<unsigned>(self));
  swapcontext(&first_caller_, &first_);
}

void Fiber::pause() {
  if (_setjmp(here_) == 0) _longjmp(caller_, 1);
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

}  // namespace llampi::emulation
