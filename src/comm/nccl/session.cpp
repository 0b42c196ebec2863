// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/session.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <future>
#include <thread>

#include "llampi/core/error.hpp"

namespace llampi::comm::nccl {
namespace {

constexpr int kShortPauses = 1000;
constexpr auto kLongPause = std::chrono::microseconds(50);
constexpr auto kPatienceWithAbort = std::chrono::seconds(3);

}  // namespace

void Deadline::pause() {
  if (++pauses_ < kShortPauses) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(kLongPause);
  }
}

void Session::require_alive() const {
  if (!aborted_) return;
  throw Error(failure_.empty() ? fmt::format("NCCL's communicators were aborted (on {})", who_)
                               : fmt::format("NCCL's communicators were aborted after this: {}", failure_));
}

ncclResult_t Session::call(const std::shared_ptr<Handle>& handle,
                           const std::function<ncclResult_t(ncclComm_t&)>& call) {
  require_alive();
  const std::lock_guard lock(mutex_);
  require_alive();
  const bool known = handle->communicator != nullptr;
  const ncclResult_t result = call(handle->communicator);
  if (!known && handle->communicator != nullptr) open_.push_back(handle);
  if (handle->communicator == nullptr) std::erase(open_, handle);
  return result;
}

ncclResult_t Session::state(const std::shared_ptr<Handle>& handle) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result =
      call(handle, [&](ncclComm_t& communicator) { return ncclCommGetAsyncError(communicator, &state); });
  return result == ncclSuccess ? state : result;
}

void Session::settle(const std::shared_ptr<Handle>& handle, ncclResult_t result, const std::string& what) {
  Deadline deadline(patience_);
  while (result == ncclInProgress) {
    if (deadline.passed()) {
      fail(fmt::format("{} of {}: NCCL or other ranks did not answer for {} s", what, handle->name,
                       std::chrono::duration<double>(patience_).count()));
    }
    deadline.pause();
    result = state(handle);
  }
  if (result != ncclSuccess) fail(fmt::format("{} of {}: {}", what, handle->name, reason(result, handle)));
}

void Session::check() {
  require_alive();
  std::vector<std::shared_ptr<Handle>> all;
  {
    const std::lock_guard lock(mutex_);
    all = open_;
  }
  for (const auto& handle : all) {
    const ncclResult_t result = state(handle);
    if (result == ncclSuccess || result == ncclInProgress) continue;
    fail(fmt::format("{}: {}", handle->name, reason(result, handle)));
  }
}

std::string Session::reason(ncclResult_t result, const std::shared_ptr<Handle>& handle) {
  std::string words = fmt::format("{}", ncclGetErrorString(result));
  const std::lock_guard lock(mutex_);
  const char* const last = ncclGetLastError(handle->communicator);  // null will do
  return last == nullptr || *last == '\0' ? words : fmt::format("{} (NCCL's last error: {})", words, last);
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
    // As one group: freeing the memory of one waits for the kernels of the others on this GPU.
    ncclGroupStart();
    for (const auto& handle : self->open_) ncclCommAbort(std::exchange(handle->communicator, nullptr));
    ncclGroupEnd();
    self->open_.clear();
    done->set_value();
  }).detach();
  done->get_future().wait_for(kPatienceWithAbort);
}

}  // namespace llampi::comm::nccl
