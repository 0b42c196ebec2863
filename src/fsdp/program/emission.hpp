// SPDX-License-Identifier: Apache-2.0
// What the builder's files share: the list so far, and short words for operands.
#pragma once

#include <utility>
#include <vector>

#include "fsdp/program/buffer_table.hpp"

namespace llampi::fsdp {

inline Operand read_of(BufferId buffer, Slot slot = Slot::input, Part part = {}) {
  return {buffer, slot, Access::read, part};
}
inline Operand write_of(BufferId buffer, Slot slot = Slot::output, Part part = {}) {
  return {buffer, slot, Access::write, part};
}
inline Operand both_of(BufferId buffer, Slot slot, Part part = {}) {
  return {buffer, slot, Access::both, part};
}

struct Emission {
  explicit Emission(const ProgramSpec& program_spec)
      : spec(program_spec),
        units(plan_units(program_spec)),
        buffers(program_spec, program),
        reduced(program_spec.units.size(), -1) {}

  /// The index of the action.
  int push(Action action) {
    const int index = program.size();
    if (action.stream == device::Stream::compute) last_compute = index;
    program.actions.push_back(std::move(action));
    return index;
  }
  std::int64_t bytes_of(BufferId buffer) const { return program[buffer].bytes; }

  const ProgramSpec& spec;
  std::vector<UnitPlan> units;
  Program program;
  BufferTable buffers;
  int last_compute = -1;
  int last_reduction = -1;
  std::vector<int>
      reduced;  ///< per unit: the action after which BufferTable::all_reduced_gradient() is complete
};

/// What follows the last micro-batch: the norm, and updates with the copies that they need.
void emit_update(Emission& list);

/// An all-reduce of a few values, in place.
struct ValuesReduction {
  Op op;
  Operand values;
  std::int64_t elements;  ///< of the operand, as `dtype`
  DType dtype;
  Ranks ranks;  ///< a group of more than one
  int after;    ///< the action that has written them
};
int push_values_reduction(Emission& list, const ValuesReduction& reduction);

/// The one workspace of a stream's collectives: from its first use on it is theirs.
Operand workspace_operand(Emission& list, device::Stream stream, std::int64_t bytes);

}  // namespace llampi::fsdp
