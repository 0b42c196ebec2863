// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_work.hpp"

#include <exception>

namespace llampi::comm::nccl {
namespace {

constexpr auto kPatienceWhileUnwinding = std::chrono::seconds(2);

}  // namespace

NcclWork::NcclWork(Gpu gpu, std::shared_ptr<Session> session, std::shared_ptr<Communicator> communicator,
                   const CollectiveLabel& label)
    : gpu_(gpu),
      session_(std::move(session)),
      communicator_(std::move(communicator)),
      label_(label),
      end_(gpu.device.record(label.stream)),
      exceptions_(std::uncaught_exceptions()) {}

NcclWork::~NcclWork() {
  if (done_ || awaited_ || session_->aborted()) return;
  try {
    const bool unwinding = std::uncaught_exceptions() > exceptions_;
    if (!finish_within(unwinding ? kPatienceWhileUnwinding : session_->patience())) session_->abort();
  } catch (...) {  // whoever issues a collective or calls check() hears of it
  }
}

bool NcclWork::progress() {
  if (done_) return true;
  if (communicator_) communicator_->check(label_);
  done_ = gpu_.cuda.is_reached(end_);
  return done_;
}

bool NcclWork::finish_within(std::chrono::milliseconds patience) {
  Deadline deadline(patience);
  while (!progress()) {
    if (deadline.passed()) return false;
    deadline.pause();
  }
  return true;
}

void NcclWork::wait(device::Stream stream) {
  if (stream != device::Stream::host) {
    gpu_.device.wait(stream, end_);
    awaited_ = true;
  } else if (!finish_within(session_->patience())) {
    session_->fail(fmt::format("{} of {} was not done after {} s", label_.describe(),
                               communicator_ ? communicator_->name() : "a group of one",
                               std::chrono::duration<double>(session_->patience()).count()));
  }
}

}  // namespace llampi::comm::nccl
