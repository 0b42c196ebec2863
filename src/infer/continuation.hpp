// SPDX-License-Identifier: Apache-2.0
// A sequence that grows: tokens go in, the logits of the next one come out. Keys and values of what was fed
// are kept, so that a token costs the same whatever stands before it, but for attention.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "llampi/fsdp/engine.hpp"

namespace llampi::infer {

class Continuation {
 public:
  /// @param engine with a generation_shape(), for one sequence at a time; must outlive this
  explicit Continuation(fsdp::Engine& engine) : engine_(engine) {}

  std::int64_t length() const { return length_; }
  /// One pass: appends the first tokens of `waiting`, as many as a pass takes, and removes them there.
  /// Returns the logits [V] of the token after them. With nothing waiting it only does its part in a pass
  /// that other ranks need, and returns nothing of use. Collective; each rank may have a sequence of its own.
  std::vector<double> pass(std::span<const std::int32_t>& waiting);

 private:
  fsdp::Engine& engine_;
  std::int64_t length_ = 0;
};

/// A sequence to be continued.
struct Beginning {
  std::vector<std::int32_t> tokens;  ///< none: nothing is to be done on this rank
  std::int64_t most = 0;             ///< tokens to add
};

struct Continued {
  std::vector<std::int32_t> tokens;  ///< those added, without the one that ended it
  bool stopped = false;              ///< by such a token
};

/// Continues a sequence on each rank, until all have come to an end. Collective.
/// @param choose the next token from logits [V], all finite; `index` counts the tokens added
/// @param added called with each token as it is chosen
/// @throws UserError on all ranks, if the model of one computes logits that are not finite
Continued continue_sequence(
    comm::World& world, fsdp::Engine& engine, const Beginning& beginning,
    const std::vector<std::int32_t>& stop,
    const std::function<std::int32_t(std::vector<double>&, std::int64_t index)>& choose,
    const std::function<void(std::int32_t)>& added = {});

}  // namespace llampi::infer
