// SPDX-License-Identifier: Apache-2.0
// One job of a run: watched from its start to its end.
#include "llampi/train/train.hpp"

#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "llampi/comm/common_failure.hpp"
#include "llampi/core/leak.hpp"
#include "llampi/health/watchdog.hpp"
#include "train/open_run.hpp"
#include "train/training_loop.hpp"

namespace llampi::train {
namespace {

class Job {
 public:
  using Complain = std::function<void(const std::string& summary)>;
  Job(comm::World& world, const Config& config, const ConfigTexts& texts, const Log& log)
      : run_{world, config, texts, log} {}

  Outcome run(const Complain& complain);
  /// After a failure of this rank alone: lets go of a save under way and what it reads.
  void abandon_save();

 private:
  Outcome open_and_train();
  void finish_what_is_saved();

  OpenRun run_;
  std::optional<TrainingLoop>
      loop_;  ///< lives on after a failure: ranks may still tell each other of the step
  std::unique_ptr<health::Watchdog> watchdog_;  ///< destroyed first
};

Outcome Job::run(const Complain& complain) {
  const auto& config = run_.config.run;
  run_.record.set_phase("starts");
  if (config.watchdog_seconds > 0) {
    watchdog_ = std::make_unique<health::Watchdog>(
        run_.world, run_.record,
        health::WatchdogOptions{config.watchdog_seconds, config.dir, run_.side_work, complain}, run_.log);
  }
  Outcome outcome{};
  const auto error = comm::common_failure([&] { outcome = open_and_train(); });
  finish_what_is_saved();
  run_.journal.end(run_.state.step, error ? "failed" : outcome == Outcome::done ? "done" : "stopped");
  if (error) {
    if (watchdog_) watchdog_->leave();
    std::rethrow_exception(error);
  }
  const health::FlightScope scope(run_.record, {"end of the run"});
  if (watchdog_) watchdog_->finish();
  return outcome;
}

Outcome Job::open_and_train() {
  if (const auto ended = open_run(run_)) return *ended;
  return loop_.emplace(run_).train();
}

/// A save under way comes to its end, whatever has become of training.
void Job::finish_what_is_saved() {
  if (!run_.saver) return;
  static_cast<void>(comm::common_failure([&] { run_.saver->finish(); }));
}

void Job::abandon_save() {
  if (!run_.saver || !run_.saver->abandon()) return;
  // The thread that saves still reads the engine's snapshot, which is memory of this device.
  leak(std::move(run_.engine));
  leak(std::move(run_.compute));
}

}  // namespace

Outcome train(comm::World& world, const Config& config, const ConfigTexts& texts, const Log& log,
              const std::function<void(const std::string& summary)>& complain) {
  Job job(world, config, texts, log);
  try {
    return job.run(complain);
  } catch (const UserError&) {
    throw;  // on all ranks: a save under way comes to its end
  } catch (const comm::CommonError&) {
    throw;
  } catch (...) {
    job.abandon_save();
    throw;
  }
}

}  // namespace llampi::train
