// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/communicator.hpp"

#include <exception>

namespace llampi::comm::nccl {

std::string Operation::describe() const {
  return fmt::format("{} of {} {} on stream {}", name, elements, to_string(dtype), stream.name());
}

Communicator::Communicator(std::shared_ptr<Session> session, const ncclUniqueId& id, int ranks, int rank,
                           const std::string& group, int stream)
    : session_(std::move(session)), exceptions_(std::uncaught_exceptions()) {
  handle_->name = group;
  handle_->label = fmt::format("llampi {}", stream);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = handle_->label.c_str();
  const ncclResult_t result = session_->call(handle_, [&](ncclComm_t& communicator) {
    return ncclCommInitRankConfig(&communicator, ranks, id, rank, &config);
  });
  // Also keeps `config` until NCCL has read it.
  session_->settle(handle_, result, fmt::format("the communicator of urgent stream {}", stream));
}

Communicator::~Communicator() {
  if (session_->aborted()) return;
  if (std::uncaught_exceptions() > exceptions_) {
    session_->abort();
    return;
  }
  try {
    const ncclResult_t result = session_->call(handle_, ncclCommFinalize);
    session_->settle(handle_, result, "the end");
    const ncclResult_t destroyed = session_->call(handle_, [](ncclComm_t& communicator) {
      return ncclCommDestroy(std::exchange(communicator, nullptr));
    });
    if (destroyed != ncclSuccess) session_->abort();
  } catch (...) {  // all is aborted, and whoever issues a collective hears of it
  }
}

void Communicator::issue(const Operation& operation, const std::function<ncclResult_t(ncclComm_t)>& call) {
  const ncclResult_t result =
      session_->call(handle_, [&](ncclComm_t& communicator) { return call(communicator); });
  if (result == ncclSuccess) return;
  session_->settle(handle_, result, operation.describe());
}

void Communicator::check(const Operation& operation) {
  const ncclResult_t result = session_->state(handle_);
  if (result == ncclSuccess || result == ncclInProgress) return;
  session_->settle(handle_, result, operation.describe());
}

}  // namespace llampi::comm::nccl
