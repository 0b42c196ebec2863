// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/dump.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "llampi/core/text.hpp"

namespace llampi::fsdp {
namespace {

std::int64_t bytes_of(const Buffer& buffer, const Operand& operand) {
  if (operand.part.whole() || operand.part.own != Own::none) return buffer.bytes;
  return bytes_of(buffer.dtype, operand.part.rows * operand.part.cols);
}

std::string format_operand(const Program& program, const OperandLine& line) {
  const Buffer& buffer = program[line.buffer];
  std::string text = fmt::format("        {:<8}{:<19}{} #{}", to_string(line.access), to_string(line.slot),
                                 buffer.purpose.name(), static_cast<int>(line.buffer));
  if (!buffer.name.empty()) text += " " + buffer.name;
  if (line.parts > 1) text += fmt::format(", {} parts", line.parts);
  text += ", " + format_bytes(line.bytes);
  if (buffer.arena == Arena::host) text += " in host memory";
  return text + "\n";
}

}  // namespace

const char* to_string(Access access) {
  constexpr std::array kNames = {"read", "write", "both", "reserve"};
  return kNames.at(static_cast<std::size_t>(access));
}

std::string name_of(const model::LayerSpec& layer) { return layer.module.empty() ? "root" : layer.module; }

std::string to_string(const Action& action, const std::vector<model::LayerSpec>& specs,
                      const std::vector<Unit>& units) {
  std::string text = to_string(action.op);
  if (action.payload != CopyPayload::none) text += fmt::format(" {}", to_string(action.payload));
  if (action.micro_batch >= 0) text += fmt::format(" mb{}", action.micro_batch);
  if (action.layer >= 0) text += fmt::format(" layer {} ({})", action.layer, name_of(specs[action.layer]));
  if (action.unit >= 0) text += fmt::format(" unit {} ({})", action.unit, units[action.unit].name);
  if (action.pass) text += action.pass == Pass::forward ? " fwd" : " bwd";
  return text;
}

std::vector<OperandLine> operand_lines(const Program& program, const Action& action) {
  std::vector<OperandLine> lines;
  for (const auto& operand : action.operands) {
    if (operand.buffer == BufferId::none) continue;
    const bool joins = !lines.empty() && lines.back().buffer == operand.buffer &&
                       lines.back().slot == operand.slot && lines.back().access == operand.access;
    if (!joins) lines.push_back({operand.buffer, operand.slot, operand.access});
    ++lines.back().parts;
    lines.back().bytes += bytes_of(program[operand.buffer], operand);
  }
  return lines;
}

std::string format_actions(const Program& program, const std::vector<model::LayerSpec>& specs,
                           const std::vector<Unit>& units) {
  std::string text;
  for (int i = 0; i < program.size(); ++i) {
    const Action& action = program.actions[i];
    text += fmt::format("{:>6}  {:<12}{}", i, action.stream.name(), to_string(action, specs, units));
    if (!action.waits.empty()) text += fmt::format(", after {}", fmt::join(action.waits, " "));
    text += "\n";
    for (const auto& line : operand_lines(program, action)) text += format_operand(program, line);
  }
  return text;
}

}  // namespace llampi::fsdp
