// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/stream_queue.hpp"

#include <chrono>
#include <exception>
#include <thread>

#include "llampi/comm/comm.hpp"

namespace llampi::comm {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);

class QueuedWork final : public Work {
 public:
  QueuedWork(std::shared_ptr<Progress> progress, device::Stream stream,
             std::shared_ptr<PendingCollective> collective)
      : progress_(std::move(progress)), stream_(stream), collective_(std::move(collective)) {}

  ~QueuedWork() override {
    try {
      if (std::uncaught_exceptions() > exceptions_) {
        progress_->wait_a_little(*collective_);
      } else {
        progress_->wait(*collective_);
      }
    } catch (...) {  // whoever needs the result calls wait(), which throws
    }
  }

  bool progress() override {
    if (!collective_->done()) progress_->queue(stream_).advance();
    return collective_->done();
  }

  void wait(device::Stream stream) override {
    if (!stream.is_urgent()) return progress_->wait(*collective_);
    if (stream != stream_) progress_->queue(stream).follow(collective_);  // else in order
  }

 private:
  std::shared_ptr<Progress> progress_;
  device::Stream stream_;  // that the collective was issued on
  std::shared_ptr<PendingCollective> collective_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

PendingCollective::~PendingCollective() {
  if (!done() && communicator_ != nullptr) communicator_->release();
}

bool PendingCollective::advance() {
  try {
    while (!done() && advance_step()) {
    }
  } catch (...) {
    step_ = steps_.size();
    throw;
  }
  return done();
}

bool PendingCollective::advance_step() {
  const Step& step = steps_[step_];
  if (!started_) {
    if (step.start) step.start(requests_);
    started_ = true;
  }
  if (!requests_.test()) return false;
  if (step.finish) step.finish();
  requests_ = Requests();
  started_ = false;
  ++step_;
  return true;
}

void StreamQueue::issue(const std::shared_ptr<PendingCollective>& collective) {
  queue_.push_back({collective});
  try {
    advance();
  } catch (...) {  // nobody would keep its buffers
    std::erase_if(queue_, [&](const Entry& entry) { return entry.collective == collective; });
    throw;
  }
}

void StreamQueue::follow(std::shared_ptr<const PendingCollective> collective) {
  if (!collective->done()) queue_.push_back({nullptr, std::move(collective)});
}

void StreamQueue::advance() {
  while (!queue_.empty()) {
    const Entry entry = queue_.front();
    try {
      if (entry.follows ? !entry.follows->done() : !entry.collective->advance()) return;
    } catch (...) {
      queue_.pop_front();
      throw;
    }
    queue_.pop_front();
  }
}

void Progress::advance_all() {
  for (StreamQueue& queue : queues_) queue.advance();
}

void Progress::wait(const PendingCollective& collective) {
  const Wait wait(*waits_);
  while (!collective.done()) advance_all();
}

void Progress::wait(Requests& requests) {
  const Wait wait(*waits_);
  while (!requests.test()) {
    advance_all();
    if (pause_.count() > 0) std::this_thread::sleep_for(pause_);
  }
}

template <class Done>
bool Progress::wait_a_little_until(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done() && !gave_up_) {
    advance_all();
    gave_up_ = !done() && std::chrono::steady_clock::now() > deadline;
  }
  return done();
}

bool Progress::wait_a_little(const PendingCollective& collective) {
  return wait_a_little_until([&] { return collective.done(); });
}

bool Progress::wait_a_little(Requests& requests) {
  return wait_a_little_until([&] { return requests.test(); });
}

std::unique_ptr<Work> issue(std::shared_ptr<Progress> progress, device::Stream stream,
                            std::vector<Step> steps, std::shared_ptr<Communicator> communicator) {
  auto collective = std::make_shared<PendingCollective>(std::move(steps), std::move(communicator));
  progress->queue(stream).issue(collective);
  return std::make_unique<QueuedWork>(std::move(progress), stream, std::move(collective));
}

}  // namespace llampi::comm
