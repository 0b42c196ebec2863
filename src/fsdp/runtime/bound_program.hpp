// SPDX-License-Identifier: Apache-2.0
// A program with its buffers as memory and its operations as code: ready to run.
#pragma once

#include <string>
#include <vector>

#include "fsdp/runtime/handlers.hpp"
#include "llampi/fsdp/arenas.hpp"

namespace llampi::fsdp {

struct BoundAction {
  const ActionHandler* handler = nullptr;
  std::vector<Tensor> tensors;  ///< per operand
  ArenaBytes reach{};           ///< the ends of its buffers
  health::FlightOperation as_noted;
  std::string name;      ///< for profilers: "backward model.layers.3.mlp", "unshard model.layers.4"
  bool awaited = false;  ///< some action of another stream waits for it
};

struct BoundProgram {
  const Program* program = nullptr;
  std::vector<BoundAction> actions;
  bool on_host = false;  ///< the host has a part in it
};

/// By which the flight record and profilers call units and layers. Units, then layers: FlightOperation::name.
struct ActionNames {
  const std::vector<Unit>& units;
  const std::vector<model::LayerSpec>& layers;

  std::vector<std::string> all() const;
  health::FlightOperation noted(const Action& action) const;
  std::string range(const Action& action) const;
};

/// @param program placed; must outlive the result, as must `handlers`
BoundProgram bind(const Program& program, const Arenas& arenas, const OwnParts& own,
                  const HandlerTable& handlers, const ActionNames& names);

}  // namespace llampi::fsdp
