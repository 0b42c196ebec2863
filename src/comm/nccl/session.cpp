// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/session.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

#include "llampi/core/error.hpp"

namespace llampi::comm::nccl {
namespace {

constexpr int kShortPauses = 1000;
constexpr auto kLongPause = std::chrono::microseconds(50);
constexpr auto kLongestPause = std::chrono::seconds(1);  // longer ones are suspensions
constexpr auto kPatienceWithAbort = std::chrono::seconds(3);

}  // namespace

void Deadline::pause() {
  if (++pauses_ < kShortPauses) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kLongPause);
  }
  const auto now = Clock::now();
  left_ -= std::min<Clock::duration>(now - std::exchange(seen_, now), kLongestPause);
}

void Session::require_alive() const {
  if (!aborted_) return;
  throw Error(failure_.empty() ? fmt::format("NCCL's communicators were aborted (on {})", who_)
                               : fmt::format("NCCL's communicators were aborted after this: {}", failure_));
}

Result Session::call(const std::shared_ptr<Handle>& handle,
                     const std::function<Result(std::unique_ptr<LibraryCommunicator>&)>& call) {
  require_alive();
  const std::lock_guard lock(mutex_);
  require_alive();
  const bool known = handle->communicator != nullptr;
  const Result result = call(handle->communicator);
  if (!known && handle->communicator != nullptr) open_.push_back(handle);
  if (handle->communicator == nullptr) std::erase(open_, handle);
  return result;
}

Result Session::state(const std::shared_ptr<Handle>& handle) {
  return call(handle, [](auto& communicator) { return communicator->state(); });
}

void Session::settle(const std::shared_ptr<Handle>& handle, Result result, const std::string& what) {
  Deadline deadline(patience_);
  while (result.is_in_progress()) {
    if (deadline.passed()) {
      fail(fmt::format("{} of {}: NCCL or other ranks did not answer for {} s", what, handle->name,
                       std::chrono::duration<double>(patience_).count()));
    }
    deadline.pause();
    result = state(handle);
  }
  if (result.has_failed()) fail(fmt::format("{} of {}: {}", what, handle->name, reason(result, handle)));
}

std::vector<std::shared_ptr<Handle>> Session::open_handles() {
  const std::lock_guard lock(mutex_);
  return open_;
}

bool Session::open_windows(void* data, std::size_t bytes) {
  bool all = true;
  for (const auto& handle : open_handles()) {
    const Result result =
        call(handle, [&](auto& communicator) { return communicator->open_window(data, bytes); });
    settle(handle, result, "a window on memory that travels");
    call(handle, [&](auto& communicator) {
      all = communicator->has_window(data) && all;
      return Result();
    });
  }
  return all;
}

void Session::close_windows(void* data) {
  if (aborted()) return;
  for (const auto& handle : open_handles()) {
    const Result result = call(handle, [&](auto& communicator) { return communicator->close_window(data); });
    settle(handle, result, "the end of a window");
  }
}

void Session::check() {
  require_alive();
  for (const auto& handle : open_handles()) {
    const Result result = state(handle);
    if (result.has_failed()) fail(fmt::format("{}: {}", handle->name, reason(result, handle)));
  }
}

std::string Session::reason(const Result& result, const std::shared_ptr<Handle>& handle) {
  const std::lock_guard lock(mutex_);
  const std::string last = library().last_error(handle->communicator.get());
  return last.empty() ? result.words : fmt::format("{} (NCCL's last error: {})", result.words, last);
}

void Session::fail(const std::string& what) {
  require_alive();
  failure_ = fmt::format("NCCL, {} (seen by {})", what, who_);
  abort();
  throw Error(failure_);
}

void Session::abort() {
  if (aborted_.exchange(true)) return;
  // On a thread of its own, which is left behind if need be: the job ends anyway.
  auto done = std::make_shared<std::promise<void>>();
  std::thread([self = shared_from_this(), done] {
    cudaSetDevice(self->gpu_);
    const std::lock_guard lock(self->mutex_);
    std::vector<std::unique_ptr<LibraryCommunicator>> communicators;
    for (const auto& handle : self->open_) communicators.push_back(std::move(handle->communicator));
    library().abort(std::move(communicators));
    self->open_.clear();
    done->set_value();
  }).detach();
  done->get_future().wait_for(kPatienceWithAbort);
}

}  // namespace llampi::comm::nccl
