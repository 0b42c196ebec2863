// SPDX-License-Identifier: Apache-2.0
#include "fsdp/runtime/bound_program.hpp"

#include "llampi/fsdp/dump.hpp"

namespace llampi::fsdp {

std::vector<std::string> ActionNames::all() const {
  std::vector<std::string> names;
  for (const auto& unit : units) names.push_back(unit.name);
  for (const auto& layer : layers) names.push_back(name_of(layer));
  return names;
}

health::FlightOperation ActionNames::noted(const Action& action) const {
  const int name = action.layer >= 0 ? static_cast<int>(units.size()) + action.layer : action.unit;
  return {to_string(action.op), name, action.bytes, action.micro_batch};
}

std::string ActionNames::range(const Action& action) const {
  std::string name = to_string(action.op);
  if (action.payload != CopyPayload::none) name += fmt::format(" {}", to_string(action.payload));
  if (action.layer >= 0) {
    name += " " + name_of(layers[static_cast<std::size_t>(action.layer)]);
  } else if (action.unit >= 0) {
    name += " " + units[static_cast<std::size_t>(action.unit)].name;
  }
  return name;
}

BoundProgram bind(const Program& program, const Arenas& arenas, const OwnParts& own,
                  const HandlerTable& handlers, const ActionNames& names) {
  BoundProgram bound{&program, std::vector<BoundAction>(program.actions.size())};
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    BoundAction& made = bound.actions[i];
    made.handler = &handlers[action.op];
    made.as_noted = names.noted(action);
    made.name = names.range(action);
    for (const auto& operand : action.operands) {
      made.tensors.emplace_back();
      if (operand.buffer == BufferId::none) continue;
      const Buffer& buffer = program[operand.buffer];
      made.tensors.back() = arenas.at(buffer, operand.part, own);
      Arenas::extend(made.reach, buffer);
    }
    bound.on_host = bound.on_host || action.stream == device::Stream::host;
    for (const int w : action.waits) bound.actions[static_cast<std::size_t>(w)].awaited = true;
  }
  return bound;
}

}  // namespace llampi::fsdp
