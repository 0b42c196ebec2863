// SPDX-License-Identifier: Apache-2.0
// What is decided by what fits, and what it costs.
#include <algorithm>
#include <utility>
#include <vector>

#include "llampi/fsdp/fit.hpp"

namespace llampi::fsdp {

std::int64_t fitting_dp_room(const FitQuestion& question, std::int64_t most) {
  constexpr int kHalvings = 6;
  EngineOptions options = question.options;
  for (int halvings = 0; halvings <= kHalvings; ++halvings) {
    options.batch.dp_room = most >> halvings;
    if (question.fits_with(options)) return options.batch.dp_room;
  }
  return 0;
}

std::int64_t fitting_logits_bytes(const FitQuestion& question) {
  constexpr std::int64_t kMib = 1 << 20, kAll = std::int64_t{1} << 60;
  constexpr std::int64_t kMost = std::int64_t{1}
                                 << 31;  // elements of a matrix that libraries index in 32 bits
  EngineOptions options = question.options;
  if (options.batch.tokens() * question.model.vocabulary() >= kMost) return device::kLogitsBytes;
  const std::int64_t whole = question.sizes.linear_cross_entropy_workspace(
      options.batch.tokens(), question.model.vocabulary(), options.precision.compute, kAll);
  options.batch.logits_bytes = (whole + kMib - 1) / kMib * kMib;
  if (options.batch.logits_bytes <= device::kLogitsBytes) return device::kLogitsBytes;
  return question.fits_with(options) ? options.batch.logits_bytes : device::kLogitsBytes;
}

std::vector<BlockCheckpointing> checkpointing_levels(const model::Model& model) {
  constexpr Checkpointing kLevels[] = {Checkpointing::none, Checkpointing::selective,
                                       Checkpointing::feed_forward, Checkpointing::full};
  const auto& modules = model.modules();
  const auto blocks = static_cast<int>(std::count_if(
      modules.begin(), modules.end(), [&](const auto& m) { return m.type == model.block_type(); }));
  std::vector<BlockCheckpointing> levels = {Checkpointing::none};
  for (std::size_t i = 1; i < std::size(kLevels); ++i) {
    for (int block = 1; block < blocks; ++block) levels.emplace_back(kLevels[i], block, kLevels[i - 1]);
    if (blocks > 0) levels.emplace_back(kLevels[i]);
  }
  return levels;
}

BlockCheckpointing fitting_checkpointing(const FitQuestion& question) {
  const auto levels = checkpointing_levels(question.model);
  std::size_t fewest = 0, enough = levels.size() - 1;
  while (fewest < enough) {
    const std::size_t middle = (fewest + enough) / 2;
    EngineOptions options = question.options;
    options.checkpointing = levels[middle];
    if (question.fits_with(options)) {
      enough = middle;
    } else {
      fewest = middle + 1;
    }
  }
  return levels[enough];
}

double forward_operations(const model::Model& model, const CompiledModel& compiled, int layer,
                          double tokens) {
  double elements = 0;
  for (const auto& use : compiled.specs[static_cast<std::size_t>(layer)].parameters) {
    const auto& parameter = model.parameters()[static_cast<std::size_t>(use.parameter)];
    // What is looked up is a matrix too, but not read in the backward pass.
    const bool multiplied = parameter.shape.size() == 2 && use.backward;
    if (multiplied) elements += static_cast<double>(parameter.elements());
  }
  return 2 * elements * tokens;
}

AddedOperations added_operations(const model::Model& model, const EngineOptions& options,
                                 const CompiledModel& compiled) {
  constexpr double kOperationsOfAByte = 16'000;
  const auto forward_of = [&](int layer) {
    return forward_operations(model, compiled, layer, static_cast<double>(options.batch.tokens()));
  };
  AddedOperations sum;
  double copied = 0;  // in one direction
  for (const auto& action : compiled.step.actions) {
    if (action.op == Op::backward) sum.needed += 3 * forward_of(action.layer);
    if (action.op == Op::recompute && !action.selective) sum.recomputed += forward_of(action.layer);
    if (action.op == Op::d2h && action.payload == CopyPayload::residual)
      copied += static_cast<double>(action.bytes);
  }
  const auto tokens = static_cast<double>(options.batch.tokens() * options.micro_batches);
  const double forward = model.flops_per_token(options.batch.seq_len) * tokens / 3;
  sum.waiting = std::max(0.0, kOperationsOfAByte * copied - forward);
  return sum;
}

KeptActivations fitting_activations(const FitQuestion& question) {
  EngineOptions options = question.options;
  FitQuestion with = {question.model, options,          question.groups,
                      question.sizes, question.backend, question.fits};
  struct Choice {
    bool too_large;
    double added;
    KeptActivations kept;
  };
  std::vector<Choice> choices;
  for (const bool offload : {false, true}) {
    options.offload.residuals = offload;
    options.checkpointing = fitting_checkpointing(with);
    const CompiledModel compiled = question.compile(options);
    const AddedOperations added = added_operations(question.model, options, compiled);
    choices.push_back({!question.fits(compiled.arena_bytes, question.groups),
                       added.recomputed + added.waiting,
                       {options.checkpointing, offload}});
    if (options.checkpointing == Checkpointing::none) break;
  }
  return std::ranges::min(choices, {}, [](const Choice& c) { return std::pair(c.too_large, c.added); }).kept;
}

std::int64_t fitting_micro_batch(const FitQuestion& question, std::int64_t enough) {
  const std::int64_t all = question.options.batch.sequences * question.options.micro_batches;
  std::vector<std::int64_t> candidates;
  for (std::int64_t n = 1; n <= all; ++n) {
    if (all % n != 0) continue;
    candidates.push_back(n);
    if (n * question.options.batch.seq_len >= enough) break;
  }
  for (; candidates.size() > 1; candidates.pop_back()) {
    EngineOptions options = question.options;
    options.batch.sequences = candidates.back();
    options.micro_batches = static_cast<int>(all / candidates.back());
    if (question.fits_with(options)) break;
  }
  return candidates.back();
}

std::int64_t fitting_seq_len(const FitQuestion& question, std::int64_t most) {
  constexpr std::int64_t kStep = 128;
  const auto fits = [&](std::int64_t steps) {
    EngineOptions options = question.options;
    options.batch.seq_len = steps * kStep;
    return question.fits_with(options);
  };
  // It fits with `low`, and is not known to with `high`.
  const std::int64_t end = most / kStep + 1;
  std::int64_t low = question.options.batch.seq_len / kStep, high = low + 1;
  while (high < end && fits(high)) low = high, high = std::min(2 * high, end);
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return std::max(low * kStep, question.options.batch.seq_len);
}

void decide_what_fits(EngineOptions& options, const FitQuestion& question, const Undecided& undecided) {
  constexpr int kPieces = 8;                     // of the most room: larger ones are faster by little
  constexpr std::int64_t kEnoughTokens = 16384;  // of a micro-batch: products are as fast as they get
  require(&options == &question.options, "the options that are decided are those of the question");
  if (undecided.most_dp_room > 0) options.batch.dp_room = undecided.most_dp_room / kPieces;
  if (undecided.checkpointing && undecided.offload_residuals) {
    const KeptActivations kept = fitting_activations(question);
    options.checkpointing = kept.checkpointing;
    options.offload.residuals = kept.offload_residuals;
  } else if (undecided.checkpointing) {
    options.checkpointing = fitting_checkpointing(question);
  }
  if (undecided.micro_batch) {
    const std::int64_t sequences = fitting_micro_batch(question, kEnoughTokens);
    options.micro_batches = static_cast<int>(options.micro_batches * options.batch.sequences / sequences);
    options.batch.sequences = sequences;
  }
  if (undecided.most_dp_room > 0)
    options.batch.dp_room = fitting_dp_room(question, undecided.most_dp_room) >> 20 << 20;
  if (undecided.logits) options.batch.logits_bytes = fitting_logits_bytes(question);
}

}  // namespace llampi::fsdp
