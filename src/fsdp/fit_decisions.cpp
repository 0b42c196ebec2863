// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/fit_decisions.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/fsdp/added_work.hpp"
#include "llampi/model/fp8_recipe.hpp"

namespace llampi::fsdp {
namespace {

/// Room for dP: `most` bytes, half of it, and so on, and none.
std::vector<std::int64_t> halvings_of(std::int64_t most) {
  constexpr int kHalvings = 6;
  std::vector<std::int64_t> rooms;
  for (int halvings = 0; halvings <= kHalvings; ++halvings) rooms.push_back(most >> halvings);
  rooms.push_back(0);
  return rooms;
}

struct CompiledLevel {
  BlockCheckpointing level;
  CompiledModel compiled;
  bool fits = false;
};

/// More micro-batches take little more memory, but a long time to compile.
EngineOptions with_few_micro_batches(EngineOptions options, int enough = 4) {
  if (options.sum_order == SumOrder::any) options.micro_batches = std::min(options.micro_batches, enough);
  return options;
}

/// The first of checkpointing_levels() with which it fits; the last where none does.
CompiledLevel fitting_level(const FitQuestion& question, int offloaded = 0) {
  const auto levels = checkpointing_levels(question.model, offloaded);
  EngineOptions few = with_few_micro_batches(question.options, 2);
  std::size_t fewest = 0, enough = levels.size() - 1;
  while (fewest < enough) {
    const std::size_t middle = (fewest + enough) / 2;
    few.checkpointing = levels[middle];
    if (question.fits_with(few)) {
      enough = middle;
    } else {
      fewest = middle + 1;
    }
  }
  EngineOptions options = question.options;
  for (;; ++enough) {
    options.checkpointing = levels[enough];
    CompiledModel compiled = question.compile(options);
    const bool fits = question.fits(compiled.arena_bytes, question.mesh, options);
    if (fits || enough + 1 == levels.size()) return {levels[enough], std::move(compiled), fits};
  }
}

/// The same step in micro-batches of so many sequences, of the numbers that divide all of them: from the largest that is needed to
/// have `enough` tokens, or from all of them, down to the fewest that can be computed.
std::vector<EngineOptions> divisions_of_step(const FitQuestion& question, std::int64_t enough) {
  const EngineOptions& options = question.options;
  const std::int64_t all = options.batch.sequences * options.micro_batches;
  const std::int64_t multiple = question.multiple_of_tokens();
  std::vector<EngineOptions> divisions;
  for (const std::int64_t n : divisors(all)) {
    if (n * options.batch.seq_len % multiple != 0) continue;
    divisions.push_back(options);
    divisions.back().batch.sequences = n;
    divisions.back().micro_batches = static_cast<int>(all / n);
    if (n * options.batch.seq_len >= enough) break;
  }
  require(!divisions.empty(), "no micro-batch of this step can be computed");
  std::ranges::reverse(divisions);
  return divisions;
}

/// For what so many blocks save, host memory has room and the link time during computation, if it is used well.
int blocks_to_offload(const FitQuestion& question) {
  EngineOptions options = with_few_micro_batches(question.options);
  options.checkpointing = {Checkpointing::offload, 1, Checkpointing::selective};
  const CompiledModel compiled = question.compile(options);
  std::int64_t of_block = 0, copied = 0;  // bytes: of a micro-batch, and of all
  for (const Action& action : compiled.step.actions) {
    if (action.payload != CopyPayload::saved || action.op != Op::d2h) continue;
    of_block = action.bytes;
    copied += action.bytes;
  }
  const double spare = spare_seconds_for_copies(question.model, options, compiled);
  if (of_block == 0 || spare < 0) return 0;
  int blocks = 1 + static_cast<int>(spare / seconds_of_host_copy(static_cast<double>(copied)));
  blocks = std::min(blocks, question.model.blocks());
  const auto host_holds = [&](int count) {
    return question.fits({0, compiled.arena_bytes[1] + (count - 1) * of_block}, question.mesh, options);
  };
  while (blocks > 0 && !host_holds(blocks)) --blocks;
  return blocks;
}

FitQuestion with_options(FitQuestion question, const EngineOptions& options) {
  question.options = options;
  return question;
}

/// A room for dP, and what attention takes longer with it: seconds_of_pieces().
struct AttentionRoom {
  std::int64_t bytes;
  double added;
};

/// The smallest room for each time that attention may take, without those with which a smaller one is faster; the fastest and
/// largest first.
std::vector<AttentionRoom> attention_rooms(const FitQuestion& question, std::int64_t most) {
  EngineOptions options = question.options;
  const CompiledModel compiled = question.compile(options);
  std::map<double, std::int64_t> room_of_time;
  for (const std::int64_t room : halvings_of(most)) {
    options.batch.attention_room = room;
    const double time = seconds_of_pieces(options, compiled);
    room_of_time.erase(room_of_time.lower_bound(time),
                       room_of_time.end());  // many pieces can be slower than none
    room_of_time[time] = room;
  }
  std::vector<AttentionRoom> rooms;
  for (const auto& [time, room] : room_of_time) rooms.push_back({room, time});
  return rooms;
}

/// What is kept of activations, with how much room for dP, and what these add to a step.
struct FittingActivations {
  KeptActivations kept;
  AttentionRoom room;
  std::pair<bool, double> cost() const { return {!kept.fits, kept.added + room.added}; }
};

/// Checkpointing, with residuals and room for dP where these are undecided too, that add least together.
FittingActivations least_added(FitQuestion question, const Undecided& undecided) {
  auto rooms = undecided.most_attention_room > 0
                   ? attention_rooms(question, undecided.most_attention_room)
                   : std::vector<AttentionRoom>{{question.options.batch.attention_room, 0}};
  const auto kept_with = [&](const AttentionRoom& room) {
    question.options.batch.attention_room = room.bytes;
    return FittingActivations{fitting_activations(question, undecided.offload), room};
  };
  FittingActivations best = kept_with(rooms.back());
  rooms.pop_back();
  FittingActivations least = best;  // with more room for dP there is less for activations
  for (const AttentionRoom& room : rooms) {
    least.room = room;
    if (least.cost() >= best.cost()) break;
    const FittingActivations other = kept_with(room);
    if (other.cost() < best.cost()) best = other;
  }
  return best;
}

/// Micro-batches with which a step takes least time: of large ones more is recomputed, small ones add to the gradients more often.
EngineOptions least_added_by_micro_batches(const FitQuestion& question, const Undecided& undecided,
                                           std::int64_t enough) {
  EngineOptions best = question.options;
  std::pair<bool, double> least{true, std::numeric_limits<double>::infinity()};
  double of_accumulation = -1;  // of a micro-batch
  for (const EngineOptions& division : divisions_of_step(question, enough)) {
    const EngineOptions few = with_few_micro_batches(division);
    const FittingActivations found = least_added(with_options(question, few), undecided);
    if (of_accumulation < 0) of_accumulation = seconds_of_accumulation(few, question.compile(few));
    auto cost = found.cost();
    cost.second *= static_cast<double>(division.micro_batches) / few.micro_batches;
    cost.second += of_accumulation * (division.micro_batches - 1);
    const bool neither_fits = cost.first && least.first;  // then the smallest needs least memory
    if (neither_fits || cost < least) least = cost, best = division;
    if (found.cost() == std::pair(false, 0.0)) break;  // smaller ones have only more to add
  }
  return best;
}

}  // namespace

FitQuestion make_fit_question(const model::Model& model, const EngineOptions& options, const DeviceMesh& mesh,
                              const device::OperationSizes& sizes, const AvailableMemory& memory) {
  const auto fits = [memory](const ArenaBytes& arena_bytes, const DeviceMesh& in_mesh,
                             const EngineOptions& with) { return memory.holds(arena_bytes, in_mesh, with); };
  return {model, options, mesh, sizes, memory.backend, fits};
}

CompiledModel FitQuestion::compile(const EngineOptions& with) const {
  return compile_model(model, with, mesh, sizes, backend);
}

bool FitQuestion::fits_with(const EngineOptions& with) const {
  return fits(compile(with).arena_bytes, mesh, with);
}

std::int64_t FitQuestion::multiple_of_tokens() const {
  std::int64_t multiple = 1;
  model::BatchShape batch = options.batch;
  batch.sequences = model::fp8_multiple(model::Fp8Scales::block);  // any length goes with it
  for (const auto& layer : model.layers()) {
    const auto spec = layer->spec(batch, options.precision.compute, sizes);
    if (spec.fp8_weights.empty()) continue;
    const auto scales = spec.fp8_blocks ? model::Fp8Scales::block : model::Fp8Scales::tensor;
    multiple = std::max(multiple, model::fp8_multiple(scales));
  }
  return multiple;
}

std::int64_t fitting_attention_room(const FitQuestion& question, std::int64_t most) {
  EngineOptions options = question.options;
  const auto fits = [&](std::int64_t room) {
    options.batch.attention_room = room;
    return room == 0 || question.fits_with(options);
  };
  const auto rooms = halvings_of(most);
  return *std::ranges::find_if(rooms, fits);
}

std::int64_t fitting_logits_bytes(const FitQuestion& question) {
  constexpr std::int64_t kMib = 1 << 20, kAll = std::int64_t{1} << 60;
  EngineOptions options = question.options;
  const std::int64_t most = question.sizes.linear_cross_entropy_workspace(
      options.batch.tokens(), question.model.vocabulary(), options.precision.compute, kAll);
  options.batch.logits_bytes = round_up(most, kMib);
  if (options.batch.logits_bytes <= device::kLogitsBytes) return device::kLogitsBytes;
  return question.fits_with(options) ? options.batch.logits_bytes : device::kLogitsBytes;
}

std::vector<BlockCheckpointing> checkpointing_levels(const model::Model& model, int offloaded) {
  const int blocks = model.blocks();
  std::vector<BlockCheckpointing> levels = {Checkpointing::none};
  const auto add = [&](int offloaded_before, Checkpointing level, int most, Checkpointing others) {
    for (int count = 1; count <= most; ++count) {
      std::vector<Checkpointing> first(static_cast<std::size_t>(offloaded_before), Checkpointing::offload);
      const bool are_all = offloaded_before + count == blocks;
      first.insert(first.end(), static_cast<std::size_t>(are_all ? 0 : count), level);
      levels.emplace_back(std::move(first), are_all ? level : others);
    }
  };
  add(0, Checkpointing::selective, blocks, Checkpointing::none);
  add(0, Checkpointing::offload, offloaded, Checkpointing::selective);
  add(offloaded, Checkpointing::feed_forward, blocks - offloaded, Checkpointing::selective);
  add(offloaded, Checkpointing::full, blocks - offloaded, Checkpointing::feed_forward);
  return levels;
}

BlockCheckpointing fitting_checkpointing(const FitQuestion& question) {
  return fitting_level(question).level;
}

KeptActivations fitting_activations(FitQuestion question, bool may_offload) {
  const auto kept = [&](int offloaded) {
    const auto [level, compiled, fits] = fitting_level(question, offloaded);
    EngineOptions chosen = question.options;
    chosen.checkpointing = level;
    return KeptActivations{level, chosen.offload.residuals, fits,
                           added_seconds(question.model, chosen, compiled).total()};
  };
  KeptActivations best = kept(0);
  if (!may_offload || best.checkpointing == Checkpointing::none) return best;
  question.options.offload.residuals = true;
  const auto improves = [&](int offloaded) {
    const KeptActivations other = kept(offloaded);
    const bool is_better = other.fits && (!best.fits || other.added < best.added);
    if (is_better) best = other;
    return is_better;
  };
  improves(0);
  // Where it does not fit with whole blocks recomputed, it does not with blocks that are not.
  const bool may_be_better = best.fits && (best.checkpointing.uses(Checkpointing::feed_forward) ||
                                           best.checkpointing.uses(Checkpointing::full));
  const int blocks = may_be_better ? blocks_to_offload(question) : 0;
  if (blocks > 0 && !improves(blocks) && blocks > 1) improves(blocks / 2);
  return best;
}

std::int64_t fitting_micro_batch(const FitQuestion& question, std::int64_t enough) {
  const auto divisions = divisions_of_step(question, enough);
  const auto fits = [&](const EngineOptions& division) { return question.fits_with(division); };
  const auto largest = std::ranges::find_if(divisions, fits);
  return (largest == divisions.end() ? divisions.back() : *largest).batch.sequences;
}

std::int64_t fitting_seq_len(std::int64_t present, std::int64_t most,
                             const std::function<bool(std::int64_t seq_len)>& fits) {
  constexpr std::int64_t kStep = 128;
  // It fits with `low`, and is not known to with `high`.
  const std::int64_t end = most / kStep + 1;
  std::int64_t low = present / kStep, high = low + 1;
  while (high < end && fits(high * kStep)) low = high, high = std::min(2 * high, end);
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle * kStep) ? low : high) = middle;
  }
  return std::max(low * kStep, present);
}

std::int64_t most_attention_room(std::int64_t gpu_bytes) {
  constexpr std::int64_t kUsualGpuBytes = std::int64_t{80} << 30;
  return (gpu_bytes > 0 ? gpu_bytes : kUsualGpuBytes) / 8;
}

EngineOptions decide_what_fits(FitQuestion question, const Undecided& undecided) {
  constexpr int kPieces = 8;                     // of the most room: larger ones are faster by little
  constexpr std::int64_t kEnoughTokens = 16384;  // of a micro-batch: products are as fast as they get
  EngineOptions& options = question.options;
  if (undecided.checkpointing) {
    if (undecided.micro_batch) options = least_added_by_micro_batches(question, undecided, kEnoughTokens);
    const auto [kept, room] = least_added(question, undecided);
    options.checkpointing = kept.checkpointing;
    options.offload.residuals = kept.offload_residuals;
    options.batch.attention_room = room.bytes;
  } else if (undecided.most_attention_room > 0) {
    options.batch.attention_room = undecided.most_attention_room / kPieces;
  }
  if (undecided.micro_batch && !undecided.checkpointing) {
    const std::int64_t sequences = fitting_micro_batch(question, kEnoughTokens);
    options.micro_batches = static_cast<int>(options.micro_batches * options.batch.sequences / sequences);
    options.batch.sequences = sequences;
  }
  if (undecided.most_attention_room > 0)
    options.batch.attention_room =
        fitting_attention_room(question, undecided.most_attention_room) >> 20 << 20;
  if (undecided.logits) options.batch.logits_bytes = fitting_logits_bytes(question);
  return options;
}

bool can_fit(const FitQuestion& question, const Undecided& undecided) {
  EngineOptions options = with_few_micro_batches(
      undecided.micro_batch ? divisions_of_step(question, 1).back() : question.options, 2);
  if (undecided.most_attention_room > 0) options.batch.attention_room = 0;
  if (undecided.logits) options.batch.logits_bytes = device::kLogitsBytes;
  if (!undecided.checkpointing) return question.fits_with(options);
  auto levels = checkpointing_levels(question.model);
  levels.erase(levels.begin(),
               levels.end() - 2);  // which of the last two needs less depends on the last layer
  for (const bool offloaded : {false, true}) {
    if (undecided.offload) options.offload.residuals = offloaded;
    for (const auto& level : levels) {
      options.checkpointing = level;
      if (question.fits_with(options)) return true;
    }
    if (!undecided.offload) return false;
  }
  return false;
}

}  // namespace llampi::fsdp
