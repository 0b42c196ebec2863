// SPDX-License-Identifier: Apache-2.0
#include "llampi/health/flight_record.hpp"

#include <algorithm>

#include "llampi/core/clock.hpp"

namespace llampi::health {
namespace {

constexpr std::uint64_t kFirstMark = 64;  // and every eighth of those, and so on

/// FNV-1a, 64 bits, on from `hash`.
std::uint64_t hash_byte(std::uint64_t hash, std::uint64_t byte) { return (hash ^ byte) * 0x100000001B3U; }

std::uint64_t hash_of(std::uint64_t before, const FlightOperation& what) {
  std::uint64_t hash = before == 0 ? 0xCBF29CE484222325U : before;
  for (const char* c = what.operation; *c != 0; ++c) hash = hash_byte(hash, static_cast<unsigned char>(*c));
  for (const std::uint64_t number :
       {static_cast<std::uint64_t>(what.name), static_cast<std::uint64_t>(what.bytes)}) {
    for (int shift = 0; shift < 64; shift += 8) hash = hash_byte(hash, number >> shift & 0xFF);
  }
  return hash;
}

}  // namespace

void FlightRecord::set_names(std::vector<std::string> names) {
  const std::lock_guard lock(mutex_);
  names_ = std::move(names);
}

void FlightRecord::set_captured(std::vector<FlightOperation> operations) {
  const std::lock_guard lock(mutex_);
  captured_ = std::move(operations);
}

void FlightRecord::begin_step(std::int64_t step) {
  const double time = steady_seconds();
  const std::lock_guard lock(mutex_);
  now_.step = step;
  now_.since = time;
  ++now_.movement;
}

void FlightRecord::end_step() {
  const double time = steady_seconds();
  const std::lock_guard lock(mutex_);
  for (auto& entry : ring_) {
    if (entry.sequence > 0 && entry.completed == 0) entry.completed = time;
  }
  now_.at.completed = time;
  ++now_.movement;
}

std::uint64_t FlightRecord::issue(const FlightOperation& what) {
  const double time = steady_seconds();
  const std::lock_guard lock(mutex_);
  const std::uint64_t sequence = ++now_.issued;
  hash_ = hash_of(hash_, what);
  entry(sequence) = {sequence, hash_, now_.step, what, time, 0};
  now_.at = entry(sequence);
  ++now_.movement;
  std::uint64_t every = kFirstMark;
  for (std::size_t i = 0; i < now_.marks.size() && sequence % every == 0; i += 2) {
    now_.marks[i + 1] = now_.marks[i];
    now_.marks[i] = {sequence, hash_};
    every *= 8;
  }
  return sequence;
}

void FlightRecord::complete(std::uint64_t sequence) {
  const double time = steady_seconds();
  const std::lock_guard lock(mutex_);
  auto& done = entry(sequence);
  if (done.sequence != sequence) return;  // overwritten since
  done.completed = time;
  if (now_.at.sequence == sequence) now_.at.completed = time;
  ++now_.movement;
}

void FlightRecord::wait(std::uint64_t sequence) {
  const double time = steady_seconds();
  const std::lock_guard lock(mutex_);
  if (entry(sequence).sequence == sequence) now_.at = entry(sequence);
  set_waiting(Waiting::operation, time);
  now_.since = time;
  ++now_.movement;
}

void FlightRecord::wait_for_device() {
  act("");
  const std::lock_guard lock(mutex_);
  now_.waiting = Waiting::device;
}

void FlightRecord::wait_for_ranks(bool waits) {
  const double time = steady_seconds();
  const std::lock_guard lock(mutex_);
  set_waiting(waits ? Waiting::ranks : Waiting::no, time);
}

void FlightRecord::set_waiting(Waiting waiting, double time) {
  if (now_.waiting == Waiting::operation) waited_ += time - waiting_since_;
  now_.waiting = waiting;
  waiting_since_ = time;
}

double FlightRecord::waited_seconds() const {
  const double time = steady_seconds();
  const std::lock_guard lock(mutex_);
  return waited_ + (now_.waiting == Waiting::operation ? time - waiting_since_ : 0);
}

void FlightRecord::act(const char* doing, int name, int micro_batch) {
  const double time = steady_seconds();
  const std::lock_guard lock(mutex_);
  if (now_.waiting != Waiting::no && now_.issued > 0) now_.at = entry(now_.issued);
  set_waiting(Waiting::no, time);
  now_.doing = doing;
  now_.doing_name = name;
  now_.micro_batch = micro_batch;
  now_.since = time;
  ++now_.movement;
}

const char* FlightRecord::set_phase(const char* phase) {
  const double time = steady_seconds();
  const std::lock_guard lock(mutex_);
  now_.since = time;
  ++now_.movement;
  return std::exchange(now_.phase, phase);
}

FlightPosition FlightRecord::position() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

std::vector<FlightEntry> FlightRecord::entries() const {
  std::vector<FlightEntry> result;
  result.reserve(kEntries);
  {
    const std::lock_guard lock(mutex_);
    result = ring_;
  }
  std::erase_if(result, [](const FlightEntry& entry) { return entry.sequence == 0; });
  std::sort(result.begin(), result.end(),
            [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return result;
}

std::vector<std::string> FlightRecord::names() const {
  const std::lock_guard lock(mutex_);
  return names_;
}

std::vector<FlightOperation> FlightRecord::captured() const {
  const std::lock_guard lock(mutex_);
  return captured_;
}

}  // namespace llampi::health
