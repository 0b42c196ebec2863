// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/communicator.hpp"

#include <exception>
#include <utility>

namespace llampi::comm::nccl {

std::string CollectiveLabel::describe() const {
  return fmt::format("{} of {} {} on stream {}", name, elements, to_string(dtype), stream.name());
}

Communicator::Communicator(std::shared_ptr<Session> session, Membership membership, const std::string& group,
                           int stream, std::shared_ptr<Communicator> parent)
    : session_(std::move(session)), parent_(std::move(parent)), exceptions_(std::uncaught_exceptions()) {
  handle_->name = group;
  handle_->label = fmt::format("llampi urgent {}", stream);
  membership.label = handle_->label.c_str();
  const Result result = session_->call(handle_, [&](auto& communicator) {
    return parent_ ? library().split(*parent_->handle_->communicator, membership, communicator)
                   : library().connect(membership, communicator);
  });
  session_->settle(handle_, result, fmt::format("the communicator of urgent stream {}", stream));
}

Communicator::~Communicator() {
  if (session_->aborted()) return;
  if (std::uncaught_exceptions() > exceptions_) {
    session_->abort();
    return;
  }
  try {
    const Result result =
        session_->call(handle_, [](auto& communicator) { return communicator->finalize(); });
    session_->settle(handle_, result, "the end");
    const Result destroyed = session_->call(
        handle_, [](auto& communicator) { return std::exchange(communicator, nullptr)->destroy(); });
    if (!destroyed.is_done()) session_->abort();
  } catch (...) {  // all is aborted, and whoever issues a collective hears of it
  }
}

void Communicator::issue(const CollectiveLabel& label, const Collective& collective) {
  const Result result =
      session_->call(handle_, [&](auto& communicator) { return communicator->issue(collective); });
  if (result.is_done()) return;
  session_->settle(handle_, result, label.describe());
}

void Communicator::check(const CollectiveLabel& label) {
  const Result result = session_->state(handle_);
  if (result.has_failed()) session_->settle(handle_, result, label.describe());
}

}  // namespace llampi::comm::nccl
