// SPDX-License-Identifier: Apache-2.0
#include "fsdp/runtime/handlers.hpp"

#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/fsdp/layer_action.hpp"

namespace llampi::fsdp {

std::span<const Tensor> Call::all(Slot slot) const { return tensors_of(action, tensors, slot); }

Tensor Call::find(Slot slot) const {
  const auto found = all(slot);
  return found.empty() ? Tensor{} : found.front();
}

Tensor Call::operator[](Slot slot) const {
  const Tensor found = find(slot);
  if (found) return found;
  throw Error(fmt::format("internal error: {} has no {}", to_string(action.op), to_string(slot)));
}

Access Call::access(Slot slot) const {
  const Operand* operand = action.find(slot);
  require(operand != nullptr, "an operand that is not there");
  return operand->access;
}

void Call::announce() {
  if (record != nullptr) sequence = record->issue(as_noted);
}

comm::Group& RankContext::group_of(const Action& action) const {
  require(action.ranks != Ranks::self, "an action of this rank alone has no group");
  return action.ranks == Ranks::shard_group ? shards : replicas;
}

ActionHandler on_its_stream(std::function<void(Call& call)> issue) {
  return [issue = std::move(issue)](Call& call) -> std::unique_ptr<comm::Work> {
    issue(call);
    return nullptr;
  };
}

void HandlerTable::add(Op op, ActionHandler handler) { handlers_[op] = std::move(handler); }

const ActionHandler& HandlerTable::operator[](Op op) const {
  const auto found = handlers_.find(op);
  if (found != handlers_.end()) return found->second;
  throw Error(fmt::format("internal error: nothing carries out '{}'", to_string(op)));
}

HandlerTable all_handlers(const RankContext& rank) {
  HandlerTable handlers;
  add_compute(handlers, rank);
  add_collectives(handlers, rank);
  add_copies(handlers, rank);
  add_update(handlers, rank);
  add_fp8(handlers, rank);
  return handlers;
}

}  // namespace llampi::fsdp
