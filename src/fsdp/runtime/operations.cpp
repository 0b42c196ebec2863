// SPDX-License-Identifier: Apache-2.0
#include "fsdp/runtime/operations.hpp"

#include <algorithm>
#include <utility>

namespace llampi::fsdp {

std::span<const Tensor> Call::all(Slot slot) const {
  const auto is_of = [&](const Operand& operand) { return operand.slot == slot; };
  const auto& operands = action.operands;
  const auto begin = std::find_if(operands.begin(), operands.end(), is_of);
  const auto end = std::find_if_not(begin, operands.end(), is_of);
  return tensors.subspan(static_cast<std::size_t>(begin - operands.begin()),
                         static_cast<std::size_t>(end - begin));
}

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

void Operations::add(Op op, Operation operation) { operations_[op] = std::move(operation); }

const Operation& Operations::operator[](Op op) const {
  const auto found = operations_.find(op);
  if (found != operations_.end()) return found->second;
  throw Error(fmt::format("internal error: nothing carries out '{}'", to_string(op)));
}

Operations all_operations(const RankContext& rank) {
  Operations operations;
  add_compute(operations, rank);
  add_collectives(operations, rank);
  add_copies(operations, rank);
  add_update(operations, rank);
  add_fp8(operations, rank);
  return operations;
}

}  // namespace llampi::fsdp
