// SPDX-License-Identifier: Apache-2.0
// One job of a run: watched from its start to its end.
#include "llampi/train/train.hpp"

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "llampi/comm/common_failure.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/leak.hpp"
#include "llampi/health/watchdog.hpp"
#include "train/failure_message.hpp"
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
  /// After a failure of this rank alone, which is about to end the job: leaves behind what may wait for others to be freed.
  void abandon();

 private:
  Outcome open_and_train();
  void finish_what_is_saved();
  void keep_words(const std::exception_ptr& error);
  std::string reason_of_end(const std::exception_ptr& error, Outcome outcome) const;
  std::string after_error();
  std::string how_to_go_on() const;

  OpenRun run_;
  std::mutex mutex_;
  std::string error_;  ///< guarded; that all ranks have thrown, until they have told the user
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
        health::WatchdogOptions{.seconds = config.watchdog_seconds,
                                .run_dir = config.dir,
                                .holds_run_dir = [this] { return run_.holds_folder.load(); },
                                .side_work = run_.side_work,
                                .complain =
                                    [this, complain](const std::string& summary) {
                                      if (complain) complain(summary + after_error() + how_to_go_on());
                                    }},
        run_.log);
    run_.watchdog = watchdog_.get();
  }
  Outcome outcome{};
  const auto error = comm::common_failure([&] { outcome = open_and_train(); });
  if (error) keep_words(error);
  finish_what_is_saved();
  run_.record.act("writing how the run ended");
  run_.journal.end({.step = run_.state.step,
                    .outcome = error                      ? "failed"
                               : outcome == Outcome::done ? "done"
                                                          : "stopped",
                    .reason = reason_of_end(error, outcome)});
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

void Job::keep_words(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  error_ = message_of(error, run_.texts.name_of);
}

/// For the history: a word, the first line of the error, or what has stopped the run.
std::string Job::reason_of_end(const std::exception_ptr& error, Outcome outcome) const {
  if (!error) return outcome == Outcome::stopped ? run_.stopping.text() : "";
  if (!run_.failure.empty()) return run_.failure;
  const std::string message = message_of(error, run_.texts.name_of);
  return message.substr(0, message.find('\n'));
}

/// For the watchdog, which ends the job if a rank hangs after an error: nobody else would tell of that.
std::string Job::after_error() {
  const std::lock_guard lock(mutex_);
  return error_.empty() ? "" : "\n  after this error: " + error_;
}

std::string Job::how_to_go_on() const {
  const std::int64_t step = run_.continuable_step;
  if (step < 0 || !run_.config.run.resume.continues_own()) return "";
  return fmt::format("\n  the same command continues from the checkpoint of step {}", step);
}

void Job::abandon() {
  // A thread that saves still reads the engine's snapshot, which is memory of this device.
  const bool saves = run_.saver && run_.saver->abandon();
  // A GPU that hangs, or waits for other ranks, frees nothing, and the error would never be told.
  if (!saves && !run_.compute.on_gpu()) return;
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
    job.abandon();
    throw;
  }
}

}  // namespace llampi::train
