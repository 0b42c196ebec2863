// SPDX-License-Identifier: Apache-2.0
// One definition of each operation with its gradient, for the comparison with the reference and for finite
// differences.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/support.hpp"

namespace llampi::test {

struct Operation {
  std::string name;
  std::vector<Values> inputs;  ///< that it is differentiated by
  /// Number of terms of the longest sum behind an element: rounding errors grow with its root.
  std::int64_t terms = 1;
  /// How many times, one behind the other, a device that keeps activations in 16 bits rounds on the way to an
  /// output. Probabilities within attention, and the gradients of its scores, count as well.
  int roundings = 1;
  /// The outputs; the first is what a gradient arrives at. Buffers are full of NaN before.
  std::function<std::vector<Values>(Session&, const std::vector<Values>& inputs)> forward;
  /// The gradients by the inputs, given that by the first output, then whatever else is written. With
  /// Accumulate::yes, those outputs that can be added to (`accumulates`) start at Session::kStart. The
  /// gradient of a weight is empty in a session whose weights are frozen.
  std::function<std::vector<Values>(Session&, const std::vector<Values>& inputs, const Values& dy,
                                    device::Accumulate)>
      backward;
  std::vector<bool> accumulates;  ///< per input
};

Operation embedding(const Layout& layout, std::int64_t hidden);
Operation rms_norm(std::int64_t tokens, std::int64_t hidden);
Operation qkv_rope(const Layout& layout, std::int64_t hidden, device::AttentionShape shape);
Operation attention(const Layout& layout, device::AttentionShape shape);
/// The next `tokens` of a sequence of which `past` are in the cache. No gradient.
Operation attention_cached(std::int64_t past, std::int64_t tokens, device::AttentionShape shape);
Operation projection_residual(std::int64_t tokens, std::int64_t in, std::int64_t out);
Operation gate_up_swiglu(std::int64_t tokens, std::int64_t hidden, std::int64_t width);
/// dy is [1, 1]: the gradient of the loss, which inverse_tokens is.
Operation head_loss(const Layout& layout, std::int64_t hidden);
/// Embedding, then the head with the same table: its gradient is the sum of both, in one buffer.
Operation tied_head(const Layout& layout, std::int64_t hidden);
/// No gradient.
Operation linear(std::int64_t tokens, std::int64_t in, std::int64_t out);

/// Cosines and sines as a model makes them, [positions, head_dim].
Values rope_table(std::int64_t positions, std::int64_t head_dim);

}  // namespace llampi::test
