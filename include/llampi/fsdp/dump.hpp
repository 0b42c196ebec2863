// SPDX-License-Identifier: Apache-2.0
// Programs for people.
#pragma once

#include <string>
#include <vector>

#include "llampi/fsdp/program.hpp"

namespace llampi::fsdp {

/// The module of a layer, or "root".
std::string name_of(const model::LayerSpec& layer);

/// What an action does, in one line: "h2d shard mb0 unit 3 (model.layers.2)".
std::string to_string(const Action& action, const std::vector<model::LayerSpec>& specs,
                      const std::vector<Unit>& units);

/// The list, one block of lines per action: index, stream, operation and waits, then an operand on each line
/// with what happens to it, its slot, purpose, name and bytes. Operands of one buffer and slot share a line.
std::string format_actions(const Program& program, const std::vector<model::LayerSpec>& specs,
                           const std::vector<Unit>& units);

/// The operands of an action, those of one buffer and slot joined, without empty ones.
struct OperandLine {
  BufferId buffer;
  Slot slot;
  Access access;
  int parts = 0;           ///< how many operands it stands for
  std::int64_t bytes = 0;  ///< of all of them
};
std::vector<OperandLine> operand_lines(const Program& program, const Action& action);
const char* to_string(Access access);  ///< "read", "write", "both", "reserve"

}  // namespace llampi::fsdp
