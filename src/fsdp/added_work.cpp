// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/added_work.hpp"

#include <algorithm>
#include <cstdint>

namespace llampi::fsdp {
namespace {

// Figures of one H100, besides kHostBytesPerSecond.
constexpr double kFlopsPerSecond = 685e12;  ///< of matrices
constexpr double kMemoryBytesPerSecond = 3e12;

// Floating-point operations of matrices in the time of one byte, rounded.
constexpr double kFlopsOfAMemoryByte = 230;   ///< 228.3
constexpr double kFlopsOfALinkByte = 16'000;  ///< 15'930

/// Whether so many floating-point operations take as long as a byte does at this rate, within 1 %.
constexpr bool take_as_long(double flops, double bytes_per_second) {
  const double ratio = flops * bytes_per_second / kFlopsPerSecond;
  return ratio > 0.99 && ratio < 1.01;
}
static_assert(take_as_long(kFlopsOfAMemoryByte, kMemoryBytesPerSecond));
static_assert(take_as_long(kFlopsOfALinkByte, kHostBytesPerSecond));

/// Of the forward pass of an attention, if the layer has one.
double attention_flops(const model::LayerSpec& spec, const model::BatchShape& batch) {
  if (!spec.attention) return 0;
  return spec.attention->forward_flops(static_cast<double>(batch.tokens()),
                                       static_cast<double>(batch.seq_len));
}

/// Read and written by norms and activation functions in a layer's forward pass, as far as it keeps what they make.
double bytes_beside_products(const model::LayerSpec& spec) {
  double bytes = 0;
  for (std::size_t i = 0; i < spec.saved.size(); ++i) {
    if (!spec.saved[i].recomputed) continue;
    const auto &written = spec.saved[i], &before = spec.saved[i > 0 ? i - 1 : 0];
    // As much is read for it, unless more is known, or something larger is kept before it in the list, such as gate and up.
    const bool follows_kept = !before.recomputed && before.bytes() > written.bytes();
    const std::int64_t read = follows_kept ? before.bytes() : written.bytes();
    bytes += static_cast<double>(written.bytes() + std::max(read, written.recomputation_bytes));
  }
  return bytes;
}

}  // namespace

double forward_flops(const model::Model& model, const CompiledModel& compiled, int layer, double tokens) {
  double elements = 0;
  for (const auto& use : compiled.specs[static_cast<std::size_t>(layer)].parameters) {
    const auto& parameter = model.parameters()[static_cast<std::size_t>(use.parameter)];
    // What is looked up is a matrix too, but not read in the backward pass.
    const bool multiplied = parameter.shape.size() == 2 && use.backward;
    if (multiplied) elements += static_cast<double>(parameter.elements());
  }
  return 2 * elements * tokens;
}

AddedFlops added_flops(const model::Model& model, const EngineOptions& options,
                       const CompiledModel& compiled) {
  const auto tokens = static_cast<double>(options.batch.tokens());
  AddedFlops sum;
  double copied = 0, passes = 0;  // bytes: in one direction of the link; read and written
  for (const auto& action : compiled.step.actions) {
    const auto bytes = static_cast<double>(action.bytes);
    if (action.payload == CopyPayload::residual) {
      passes += bytes;
      if (action.op == Op::d2h) copied += bytes;
    }
    if (action.op == Op::backward) sum.needed += 3 * forward_flops(model, compiled, action.layer, tokens);
    if (action.op == Op::recompute) {
      const auto& spec = compiled.specs[static_cast<std::size_t>(action.layer)];
      sum.recomputed += forward_flops(model, compiled, action.layer, tokens);
      sum.attention += attention_flops(spec, options.batch);
      passes += bytes_beside_products(spec);
    } else if (action.recomputes) {
      for (const auto& saved : compiled.specs[static_cast<std::size_t>(action.layer)].saved) {
        if (saved.recomputed) passes += static_cast<double>(saved.bytes() + saved.recomputation_bytes);
      }
    }
  }
  const double forward = model.flops_per_token(options.batch.seq_len) * tokens * options.micro_batches / 3;
  sum.memory = kFlopsOfAMemoryByte * passes;
  sum.waiting = std::max(0.0, kFlopsOfALinkByte * copied - forward);
  return sum;
}

double flops_of_pieces(const EngineOptions& options, const CompiledModel& compiled) {
  // Of 8192 tokens and 32 heads of 128: whole 3.15 ms, in 4 pieces 3.88, in 8 pieces 4.72, by native kernels 7.05. What a piece
  // adds grows with the sequence as a block of threads does, which loops over it.
  constexpr double kOfPiece = 950, kNative = 2;
  double sum = 0;
  for (const auto& action : compiled.step.actions) {
    if (action.op != Op::backward) continue;
    const auto& spec = compiled.specs[static_cast<std::size_t>(action.layer)];
    if (!spec.attention) continue;
    const std::int64_t sequences = options.batch.sequences, seq_len = options.batch.seq_len;
    const double backward = 2.5 * attention_flops(spec, options.batch);
    const std::int64_t pieces =
        device::attention_pieces(*spec.attention, sequences, seq_len, options.batch.attention_room);
    const double of_piece = kOfPiece * backward / static_cast<double>(sequences * seq_len);
    sum += pieces == 0 ? kNative * backward : of_piece * static_cast<double>(pieces - 1);
  }
  return sum;
}

double flops_of_accumulation(const EngineOptions& options, const CompiledModel& compiled) {
  const std::int64_t kept = size_of(options.precision.gradient_shard),
                     reduced = size_of(options.precision.reduce);
  std::int64_t bytes = 0;
  for (const Unit& unit : compiled.units) {
    if (unit.frozen) continue;
    const bool shards_are_added = unit.shards > 1 && !options.accumulate_unsharded;
    bytes += shards_are_added ? unit.flat_elements() * reduced + 2 * unit.shard_elements * kept
                              : 2 * unit.flat_elements() * (unit.shards > 1 ? reduced : kept);
  }
  return kFlopsOfAMemoryByte * static_cast<double>(bytes);
}

}  // namespace llampi::fsdp
