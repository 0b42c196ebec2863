// SPDX-License-Identifier: Apache-2.0
// Runs programs: issues one action after another, each after what it waits for. It knows streams, events and
// collectives under way, and no operation.
#pragma once

#include <functional>
#include <utility>

#include "fsdp/runtime/bound_program.hpp"
#include "llampi/fsdp/observer.hpp"

namespace llampi::fsdp {

class Executor {
 public:
  /// All must outlive it.
  Executor(device::Device& device, comm::World& world, Arenas& arenas, health::FlightRecord& record)
      : device_(device), world_(world), arenas_(arenas), record_(&record) {}

  /// Issues everything and waits for the copies. What is on other streams may not be done. False: the rest
  /// was aborted (ask_before_micro_batches()).
  bool run(const BoundProgram& bound, const RunInputs& inputs);
  /// Issues everything while the device captures it.
  void capture(const BoundProgram& bound, const RunInputs& inputs);
  /// Notices a rank that is lost meanwhile, for which the device would wait without end.
  void wait_for_device(device::Stream stream);

  void observe(Observer observer) { observer_ = std::move(observer); }
  bool observed() const { return static_cast<bool>(observer_); }
  /// Asked before each micro-batch but the first, by run(). True: the rest is not issued. Returns what was asked until now.
  std::function<bool()> ask_before_micro_batches(std::function<bool()> should_abort) {
    return std::exchange(should_abort_, std::move(should_abort));
  }
  void keep_record(health::FlightRecord& record) { record_ = &record; }
  health::FlightRecord& record() const { return *record_; }

 private:
  enum class Issue : bool { run, capture };
  struct Running;
  bool issue_all(const BoundProgram& bound, const RunInputs& inputs, Issue how);
  void issue(Running& running, int index);
  void wait_for(Running& running, int index, device::Stream stream);
  bool aborts_before(const Action& action, Issue how) const;

  device::Device& device_;
  comm::World& world_;
  Arenas& arenas_;
  health::FlightRecord* record_;
  Observer observer_;
  std::function<bool()> should_abort_;
};

}  // namespace llampi::fsdp
