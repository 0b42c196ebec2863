// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/added_work.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

namespace llampi::fsdp {
namespace {

// Figures of one H100, besides kHostBytesPerSecond.
constexpr double kFlopsPerSecond = 685e12;  ///< of matrices
constexpr double kMemoryBytesPerSecond = 3e12;

constexpr double kFp8Speed = 1.75;          ///< of matrices in 8 bits: 340 ms of a step instead of 595
constexpr double kAttentionBackward = 2.5;  ///< products of its backward pass for each of the forward pass
constexpr double kMemoryBackward = 1.7;     ///< likewise, bytes of SwiGLU: 5 of 3; of a norm somewhat fewer

bool copies_activation(const Action& action) {
  return action.payload == CopyPayload::residual || action.payload == CopyPayload::saved;
}

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

/// Seconds of each layer in a micro-batch: with attention, norms and activation functions, and FP8 at its speed.
std::vector<PerPass> seconds_of_layers(const model::Model& model, const EngineOptions& options,
                                       const CompiledModel& compiled) {
  auto layers = flops_of_layers(model, options, compiled);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto& spec = compiled.specs[i];
    const double attention = attention_flops(spec, options.batch) / kFlopsPerSecond,
                 memory = bytes_beside_products(spec) / kMemoryBytesPerSecond,
                 speed = kFlopsPerSecond * (spec.fp8_weights.empty() ? 1 : kFp8Speed);
    layers[i] = {layers[i].forward / speed + attention + memory,
                 layers[i].backward / speed + kAttentionBackward * attention + kMemoryBackward * memory};
  }
  return layers;
}

/// Seconds that the last layer is done later than without copies, if streams have nothing but layers to compute, and activations
/// and parameters to copy.
double waiting_for_copies(const model::Model& model, const EngineOptions& options,
                          const CompiledModel& compiled) {
  const auto layers = seconds_of_layers(model, options, compiled);
  const auto& actions = compiled.step.actions;
  std::vector<double> end(actions.size());
  std::array<double, device::kStreams> free_at{};
  double computed = 0, done = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    double& free = free_at[action.stream.index()];
    for (const int waited : action.waits) free = std::max(free, end[static_cast<std::size_t>(waited)]);
    if (is_of_layer(action)) {
      const double time = of_action(action, layers);
      computed += time;
      done = free += time;
    } else if (copies_activation(action) || action.payload == CopyPayload::shard) {
      free += seconds_of_host_copy(static_cast<double>(action.bytes));
    }
    end[i] = free;
  }
  return std::max(0.0, done - computed);
}

}  // namespace

std::vector<PerPass> flops_of_layers(const model::Model& model, const EngineOptions& options,
                                     const CompiledModel& compiled) {
  const auto tokens = static_cast<double>(options.batch.tokens());
  const auto unit_of = unit_of_parameter(compiled.units, model.parameters().size());
  std::vector<PerPass> layers;
  for (const auto& spec : compiled.specs) {
    PerPass& flops = layers.emplace_back();
    for (const auto& use : spec.parameters) {
      const auto number = static_cast<std::size_t>(use.parameter);
      const auto& parameter = model.parameters()[number];
      // What is looked up is a matrix too, but not read in the backward pass.
      const bool multiplied = parameter.shape.size() == 2 && use.backward;
      if (!multiplied) continue;
      const double product = 2 * static_cast<double>(parameter.elements()) * tokens;
      const bool is_frozen = compiled.units[static_cast<std::size_t>(unit_of[number])].frozen;
      flops.forward += product;
      flops.backward += is_frozen ? product : 2 * product;
    }
  }
  return layers;
}

bool is_of_layer(const Action& action) {
  return action.op == Op::forward || action.op == Op::backward || action.op == Op::recompute;
}

double of_action(const Action& action, const std::vector<PerPass>& layers) {
  const PerPass& layer = layers[static_cast<std::size_t>(action.layer)];
  if (action.op != Op::backward) return layer.forward;
  const bool is_loss = action.layer + 1 == std::ssize(layers);
  return layer.backward + (is_loss ? layer.forward : 0);
}

double flops_per_token(const model::Model& model, const EngineOptions& options, const CompiledModel& compiled,
                       double labels) {
  const auto tokens = static_cast<double>(options.batch.tokens());
  const auto layers = flops_of_layers(model, options, compiled);
  double flops = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double computed = i + 1 == layers.size() ? labels : 1;
    flops += computed * (layers[i].forward + layers[i].backward) / tokens +
             3 * attention_flops(compiled.specs[i], options.batch) / tokens;
  }
  return flops;
}

double forward_flops(const model::Model& model, const EngineOptions& options, const CompiledModel& compiled) {
  double flops = 0;
  for (const PerPass& layer : flops_of_layers(model, options, compiled)) flops += layer.forward;
  for (const auto& spec : compiled.specs) flops += attention_flops(spec, options.batch);
  return flops;
}

AddedSeconds added_seconds(const model::Model& model, const EngineOptions& options,
                           const CompiledModel& compiled) {
  const auto layers = flops_of_layers(model, options, compiled);
  AddedSeconds sum;
  double passes = 0;  // bytes that are read or written
  for (const auto& action : compiled.step.actions) {
    const auto bytes = static_cast<double>(action.bytes);
    if (copies_activation(action)) passes += bytes;
    if (!is_of_layer(action)) continue;
    (action.op == Op::recompute ? sum.recomputed : sum.needed) += of_action(action, layers) / kFlopsPerSecond;
    if (action.op == Op::recompute) {
      const auto& spec = compiled.specs[static_cast<std::size_t>(action.layer)];
      sum.attention += attention_flops(spec, options.batch) / kFlopsPerSecond;
      passes += bytes_beside_products(spec);
    } else if (action.recomputes) {
      for (const auto& saved : compiled.specs[static_cast<std::size_t>(action.layer)].saved) {
        if (saved.recomputed) passes += static_cast<double>(saved.bytes() + saved.recomputation_bytes);
      }
    }
  }
  sum.memory = passes / kMemoryBytesPerSecond;
  sum.waiting = waiting_for_copies(model, options, compiled);
  return sum;
}

double seconds_of_host_copy(double bytes) { return bytes / kHostBytesPerSecond; }

double spare_seconds_for_copies(const model::Model& model, const EngineOptions& options,
                                const CompiledModel& compiled) {
  double copied = 0, computed = 0;
  for (const auto& action : compiled.step.actions) {
    if (copies_activation(action) && action.op == Op::d2h) copied += static_cast<double>(action.bytes);
  }
  for (const PerPass& layer : seconds_of_layers(model, options, compiled)) computed += layer.forward;
  return options.micro_batches * computed - seconds_of_host_copy(copied);
}

double seconds_of_pieces(const EngineOptions& options, const CompiledModel& compiled) {
  // Of 8192 tokens and 32 heads of 128: whole 3.15 ms, in 4 pieces 3.88, in 8 pieces 4.72, by native kernels 7.05. What a piece
  // adds grows with the sequence as a block of threads does, which loops over it.
  constexpr double kOfPiece = 950, kNative = 2;
  double sum = 0;
  for (const auto& action : compiled.step.actions) {
    if (action.op != Op::backward) continue;
    const auto& spec = compiled.specs[static_cast<std::size_t>(action.layer)];
    if (!spec.attention) continue;
    const std::int64_t sequences = options.batch.sequences, seq_len = options.batch.seq_len;
    const double backward = kAttentionBackward * attention_flops(spec, options.batch) / kFlopsPerSecond;
    const std::int64_t pieces =
        device::attention_pieces(*spec.attention, sequences, seq_len, options.batch.attention_room);
    const double of_piece = kOfPiece * backward / static_cast<double>(sequences * seq_len);
    sum += pieces == 0 ? kNative * backward : of_piece * static_cast<double>(pieces - 1);
  }
  return sum;
}

double seconds_of_accumulation(const EngineOptions& options, const CompiledModel& compiled) {
  const std::int64_t kept = size_of(options.precision.gradient_shard),
                     reduced = size_of(options.precision.reduce);
  std::int64_t bytes = 0;
  for (const Unit& unit : compiled.units) {
    if (unit.frozen) continue;
    const bool shards_are_added = unit.shards > 1 && !options.accumulate_unsharded;
    bytes += shards_are_added ? unit.flat_elements() * reduced + 2 * unit.shard_elements * kept
                              : 2 * unit.flat_elements() * (unit.shards > 1 ? reduced : kept);
  }
  return static_cast<double>(bytes) / kMemoryBytesPerSecond;
}

}  // namespace llampi::fsdp
