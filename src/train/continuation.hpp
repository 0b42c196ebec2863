// A sequence that grows: tokens go in, the logits of the next one come out. Keys and values of what was fed
// are kept, so that a token costs the same whatever stands before it, but for attention.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llampi/fsdp/engine.hpp"

namespace llampi {

/// The batch shape of an engine for sequences of up to `tokens` tokens.
BatchShape generation_shape(std::int64_t tokens);

class Continuation {
 public:
  /// @param engine with a generation_shape(), for one sequence at a time; must outlive this
  explicit Continuation(Engine& engine) : engine_(engine) {}

  std::int64_t length() const { return length_; }
  /// Appends tokens, at least one; logits [V] of the token after them. Collective: all ranks feed the same.
  std::vector<double> feed(std::span<const std::int32_t> tokens);

 private:
  Engine& engine_;
  std::int64_t length_ = 0;
};

}  // namespace llampi
