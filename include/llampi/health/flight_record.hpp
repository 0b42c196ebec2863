// SPDX-License-Identifier: Apache-2.0
// Flight recorder: what this rank did last and is doing now, to find out why a job does not move on.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace llampi::health {

/// In run.dir: where flight records are written.
inline constexpr const char* kFlightFolder = "flight";

/// Something that takes all ranks of a group. `operation` is a literal.
struct FlightOperation {
  const char* operation = "";
  int name = -1;  ///< of what: index into FlightRecord::names(), -1: nothing of its own
  std::int64_t bytes = 0;
  int micro_batch = -1;
};

/// An operation that was issued. It is known to be completed when `completed` is positive. On CPUs that is
/// when it was. On GPUs it is when the host learned of it: when it next asked (a step that is issued action
/// by action), or at the end of the step. A step that is replayed as a CUDA graph is one operation: its parts are
/// not observed until it has ended. Its content is the same in every step: FlightRecord::captured().
struct FlightEntry {
  std::uint64_t sequence = 0;  ///< from 1; the same operation has the same number on every rank
  std::uint64_t hash = 0;      ///< of this and all operations before: (operation, name, bytes)
  std::int64_t step = 0;
  FlightOperation what;
  double issued = 0, completed = 0;  ///< steady_seconds()
};

/// The hash after the operation `sequence`.
struct FlightMark {
  std::uint64_t sequence = 0, hash = 0;
};

/// What the host does nothing but wait for.
enum class Waiting : std::uint8_t {
  no,
  operation,  ///< for other ranks, in an operation
  device,     ///< for the device, after all work was issued; the device may wait for other ranks
  ranks       ///< for other ranks, outside of operations: in a phase
};

/// Where a rank stands.
struct FlightPosition {
  std::int64_t step = 0;
  std::uint64_t issued = 0;    ///< operations so far
  std::uint64_t movement = 0;  ///< another number whenever anything has begun or ended since
  Waiting waiting = Waiting::no;
  FlightEntry at;          ///< Waiting::operation: that one; else the last that was issued
  const char* doing = "";  ///< if it does not wait: "forward", "update", ...
  int doing_name = -1;
  int micro_batch = -1;
  const char* phase = nullptr;  ///< outside of steps: "saves a checkpoint", ...
  double since = 0;             ///< of what it does or waits for; steady_seconds()
  /// At the last and the last but one multiple of 64, of 512, of 4096, ...: ranks that are less than such a
  /// number apart, and farther than that from the start, have one in common.
  std::array<FlightMark, 12> marks;
};

/// A ring of the last operations, written by the thread that trains and read by any other. A short lock
/// guards it (some ten nanoseconds without a concurrent reader); nothing is allocated while it is written.
class FlightRecord {
 public:
  static constexpr std::size_t kEntries = 256;

  FlightRecord() : ring_(kEntries) {}

  // ---- the thread that trains ----
  /// Units and layers, by which what follows says its `name`.
  void set_names(std::vector<std::string> names);
  /// The operations of a step that is replayed whole.
  void set_captured(std::vector<FlightOperation> operations);
  void begin_step(std::int64_t step);
  /// Everything that was issued is known to be completed.
  void end_step();
  /// The number of the new entry.
  std::uint64_t issue(const FlightOperation& what);
  void complete(std::uint64_t sequence);
  /// From here to act() the host waits for other ranks, in this operation.
  void wait(std::uint64_t sequence);
  void wait_for_device();
  /// In a phase, outside of operations: whether other ranks hold this one up. It does not count as progress.
  void wait_for_ranks(bool waits);
  /// The host is done with the last action, or with waiting, and does this. `doing` is a literal.
  void act(const char* doing, int name = -1, int micro_batch = -1);
  /// A long activity outside of steps, or nullptr; a literal.
  const char* set_phase(const char* phase);

  /// How many seconds the host has waited for other ranks so far, in operations. How long a device waits is not known.
  double waited_seconds() const;

  // ---- any thread ----
  FlightPosition position() const;
  std::vector<FlightEntry> entries() const;  ///< the oldest first
  std::vector<std::string> names() const;
  std::vector<FlightOperation> captured() const;

 private:
  FlightEntry& entry(std::uint64_t sequence) { return ring_[sequence % kEntries]; }
  void set_waiting(Waiting waiting, double time);

  mutable std::mutex mutex_;
  std::vector<FlightEntry> ring_;
  std::vector<std::string> names_;
  std::vector<FlightOperation> captured_;
  FlightPosition now_;
  std::uint64_t hash_ = 0;
  double waited_ = 0;         ///< seconds, before waiting_since_
  double waiting_since_ = 0;  ///< if now_.waiting is Waiting::operation
};

/// An operation between all ranks from here to the end of the scope; the host waits for it.
class FlightScope {
 public:
  FlightScope(FlightRecord& record, const FlightOperation& what)
      : record_(record), sequence_(record.issue(what)) {
    record_.wait(sequence_);
  }
  ~FlightScope() {
    record_.complete(sequence_);
    record_.act("");
  }
  FlightScope(const FlightScope&) = delete;
  FlightScope& operator=(const FlightScope&) = delete;

 private:
  FlightRecord& record_;
  std::uint64_t sequence_;
};

/// A phase from here to the end of the scope.
class FlightPhase {
 public:
  FlightPhase(FlightRecord& record, const char* phase) : record_(record), outer_(record.set_phase(phase)) {}
  ~FlightPhase() { record_.set_phase(outer_); }
  FlightPhase(const FlightPhase&) = delete;
  FlightPhase& operator=(const FlightPhase&) = delete;

 private:
  FlightRecord& record_;
  const char* outer_;
};

}  // namespace llampi::health
