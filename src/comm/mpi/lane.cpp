#include "comm/mpi/lane.hpp"

#include <algorithm>
#include <exception>

namespace llampi {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);

class LaneWork final : public Work {
 public:
  LaneWork(std::shared_ptr<Lane> lane, std::shared_ptr<Operation> operation)
      : lane_(std::move(lane)), operation_(std::move(operation)) {}

  ~LaneWork() override {
    try {
      if (std::uncaught_exceptions() > exceptions_) {
        lane_->progress().wait_a_little(*operation_);
      } else {
        lane_->progress().wait(*operation_);
      }
    } catch (...) {  // whoever needs the result calls wait(), which throws
    }
  }

  bool progress() override {
    if (!operation_->done()) lane_->advance();
    return operation_->done();
  }

  void wait(Stream /*stream*/) override { lane_->progress().wait(*operation_); }

 private:
  std::shared_ptr<Lane> lane_;
  std::shared_ptr<Operation> operation_;
  int exceptions_ = std::uncaught_exceptions();
};

class DoneWork final : public Work {
 public:
  bool progress() override { return true; }
  void wait(Stream /*stream*/) override {}
};

}  // namespace

bool Operation::advance() {
  try {
    while (!done() && advance_step()) {
    }
  } catch (...) {
    step_ = steps_.size();
    throw;
  }
  return done();
}

bool Operation::advance_step() {
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

void Progress::advance_all() {
  for (Lane* lane : lanes_) lane->advance();
}

void Progress::wait(const Operation& operation) {
  while (!operation.done()) advance_all();
}

void Progress::wait(Requests& requests) {
  while (!requests.test()) advance_all();
}

bool Progress::wait_a_little(const Operation& operation) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!operation.done() && !gave_up_) {
    advance_all();
    gave_up_ = !operation.done() && std::chrono::steady_clock::now() > deadline;
  }
  return operation.done();
}

Lane::Lane(std::shared_ptr<Progress> progress, Communicator communicator)
    : progress_(std::move(progress)), communicator_(std::move(communicator)) {
  progress_->lanes_.push_back(this);
}

Lane::~Lane() {
  std::erase(progress_->lanes_, this);
  if (!queue_.empty()) communicator_.release();  // given up: MPI still uses it
}

void Lane::issue(std::shared_ptr<Operation> operation) {
  queue_.push_back(std::move(operation));
  advance();
}

void Lane::advance() {
  while (!queue_.empty()) {
    const auto operation = queue_.front();
    try {
      if (!operation->advance()) return;
    } catch (...) {
      queue_.pop_front();
      throw;
    }
    queue_.pop_front();
  }
}

std::unique_ptr<Work> issue(std::shared_ptr<Lane> lane, std::vector<Step> steps) {
  auto operation = std::make_shared<Operation>(std::move(steps));
  lane->issue(operation);
  return std::make_unique<LaneWork>(std::move(lane), std::move(operation));
}

std::unique_ptr<Work> done_work() { return std::make_unique<DoneWork>(); }

}  // namespace llampi
