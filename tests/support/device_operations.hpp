// SPDX-License-Identifier: Apache-2.0
// One definition of each operation with its gradient, for the comparison with the reference and for finite
// differences.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/device_session.hpp"

namespace llampi::test {

struct OperationCase {
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
                                    Accumulate)>
      backward;
  std::vector<bool> accumulates;  ///< per input
  std::size_t weights = 1;        ///< so many of the last inputs
  bool ends_in_loss = false;      ///< the gradient that arrives is inverse_tokens, a small positive number
};

/// What arrives at the first output of `op`.
Values gradient_of_output(const OperationCase& op, const std::vector<Values>& outputs);

OperationCase embedding(const Layout& layout, std::int64_t hidden);
OperationCase rms_norm(std::int64_t tokens, std::int64_t hidden);
/// What is between the product and RoPE.
enum class Transform : std::uint8_t { none, bias, norms };

OperationCase qkv_rope(const Layout& layout, std::int64_t hidden, device::AttentionShape shape,
                       Transform transform = Transform::none);
/// @param attention_room of the backward direction: by default enough for all of dP
OperationCase attention(const Layout& layout, device::AttentionShape shape,
                        std::int64_t attention_room = std::int64_t{1} << 30);
/// The next `tokens` of a sequence of which `kv_len` are in the cache. No gradient.
OperationCase cached_attention(std::int64_t kv_len, std::int64_t tokens, device::AttentionShape shape);
/// Of qkv, in place, or of a product in a buffer of its own; its gradient is the rotation back.
OperationCase rope(const Layout& layout, device::AttentionShape shape, Transform transform = Transform::none);
OperationCase projection_residual(std::int64_t tokens, std::int64_t in, std::int64_t out);
OperationCase gate_up_swiglu(std::int64_t tokens, std::int64_t hidden, std::int64_t width);
/// Which product low-rank adapters are beside: q and v, one of two adapters in each; o; gate and up.
enum class Adapted : std::uint8_t { qkv, projection, gate_up };
/// The inputs are x, then a and b of each adapter; the weight is frozen.
OperationCase adapters(Adapted adapted, const Layout& layout, std::int64_t rank, double dropout);
/// Of gate_up, whose gradient is written over it.
OperationCase swiglu(std::int64_t tokens, std::int64_t width);
/// dy is [1, 1]: the gradient of the loss, which inverse_tokens is.
/// @param valid_labels as in the operations
OperationCase linear_cross_entropy(const Layout& layout, std::int64_t hidden,
                                   std::int64_t logits_bytes = device::kLogitsBytes,
                                   std::int64_t valid_labels = 0);
/// Embedding, then the head with the same table: its gradient is the sum of both, in one buffer.
OperationCase tied_head(const Layout& layout, std::int64_t hidden);
/// No gradient.
OperationCase linear(std::int64_t tokens, std::int64_t in, std::int64_t out);

/// Cosines and sines as a model makes them, [positions, head_dim].
Values rope_table(std::int64_t positions, std::int64_t head_dim);

}  // namespace llampi::test
