// SPDX-License-Identifier: Apache-2.0
#include "train/decisions.hpp"

#include <algorithm>
#include <optional>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/threads.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/available_memory.hpp"
#include "llampi/fsdp/fit_decisions.hpp"
#include "llampi/train/config_rules.hpp"
#include "llampi/train/micro_batches.hpp"
#include "llampi/train/run_text.hpp"
#include "train/engine_config.hpp"

namespace llampi::train {
namespace {

constexpr std::int64_t kMostMib = std::int64_t{1} << 40;

/// None for what is no whole number between these.
std::optional<std::int64_t> parse_between(const std::string& text, std::int64_t least, std::int64_t most) {
  const auto number = parse_number<std::int64_t>(text);
  return number && *number >= least && *number <= most ? number : std::nullopt;
}

/// MiB, of the run so far, which may be older than the key; none if it did not say, or there is none.
std::optional<std::int64_t> logits_before(const RunText& then) {
  const std::string said = then.value(kLogitsRoomKey);
  const bool is_older = said.empty() && !then.values.empty();
  return is_older ? device::kLogitsBytes >> 20 : parse_between(said, 0, kMostMib);
}

/// The configuration with what the checkpoint says where it is `auto`.
Config as_decided_before(const Config& config, const std::string& run_text, int ranks) {
  const RunText then = read_run_text(run_text);  // "auto" where there is no checkpoint
  Config decided = config;
  if (!config.run.attention_workspace)
    decided.run.attention_workspace = parse_between(then.value(kAttentionRoomKey), 0, kMostMib);
  if (!config.run.logits_workspace) decided.run.logits_workspace = logits_before(then);
  if (!config.activation.checkpointing) {
    decided.activation.checkpointing = fsdp::parse_checkpointing(then.value(kCheckpointingKey));
    if (!config.activation.offload)
      decided.activation.offload = from_word<ActivationOffload>(then.value(kOffloadKey));
  }
  const std::int64_t of_rank = config.train.global_batch / ranks;
  const auto micro_batch = parse_between(then.value(kMicroBatchKey), 1, of_rank);
  if (!config.train.micro_batch && micro_batch && of_rank % *micro_batch == 0 &&
      *micro_batch * config.data.seq_len % multiple_of_tokens(config) ==
          0)  // the products may be other ones now
    decided.train.micro_batch = micro_batch;
  return decided;
}

/// What every rank has, so that all decide alike. Collective.
struct LeastMemory {
  fsdp::AvailableMemory available;
  GpuOfRanks gpu;
};
LeastMemory least_memory(comm::World& world, const comm::Compute& compute) {
  std::int64_t gpu[] = {compute.gpu_properties.memory_bytes, compute.gpu_properties.major};
  comm::min_over_ranks(world, gpu);
  return {fsdp::available_to_all(world, compute), {gpu[0], static_cast<int>(gpu[1])}};
}

/// In one line; empty if neither was `auto`.
std::string rooms_in_words(const Decisions& decisions) {
  std::string words;
  for (const auto& [key, value] : decisions) {
    if (key != kAttentionRoomKey && key != kLogitsRoomKey) continue;
    words += fmt::format("{}{} = auto: {} MiB", words.empty() ? "" : ", ", key, value);
  }
  return words;
}

/// As the checkpoint says if that fits, else what fits. Collective.
void decide_options(const BeginningRun& run, const LeastMemory& least, fsdp::EngineOptions& options) {
  comm::World& world = run.world;
  const Inputs& inputs = run.inputs;
  const Config& config = run.config;
  const comm::Backend backend = run.compute.world().backend();
  const auto mesh =
      fsdp::make_device_mesh(options.strategy, world.topology().node_of_rank, options.shard_group_size);
  const auto sizes =
      fsdp::sizes_for_all(world, run.compute, comm::threads_per_rank(world, config.run.threads));
  comm::agree(world, [&] {
    const auto options_of = [&](const Config& some) {
      return engine_options(some, *inputs.model, micro_batches_of_step(some, world.size()), backend);
    };
    auto question = fsdp::make_fit_question(*inputs.model, {}, mesh, *sizes, least.available);
    // On other GPUs more recomputation or less room may do. The one changes no bits, the other none while cuDNN's kernels have
    // room for a key/value head; other chunks of logits do, and another micro-batch.
    const Config before = as_decided_before(config, run.text, world.size());
    Config with_micro_batch = config;
    with_micro_batch.train.micro_batch = before.train.micro_batch;
    Config with_logits = with_micro_batch;
    with_logits.run.logits_workspace = before.run.logits_workspace;
    for (const Config& kept : {before, with_logits, with_micro_batch, config}) {
      question.options = options_of(kept);
      options = fsdp::decide_what_fits(question, undecided_options(kept, backend, least.gpu));
      if (run.text.empty() || question.fits_with(options)) return;
    }
  });
}

}  // namespace

Decisions make_decisions(const BeginningRun& run, fsdp::EngineOptions& options) {
  const Config& config = run.config;
  const Log& log = run.log;
  const RunText then = read_run_text(run.text);
  const comm::Backend backend = run.compute.world().backend();
  fsdp::Undecided undecided = undecided_options(config, backend, {});
  if (undecided.any()) {
    const LeastMemory least = least_memory(run.world, run.compute);
    decide_options(run, least, options);
    undecided = undecided_options(config, backend, least.gpu);
  }
  Decisions decisions;
  if (undecided.micro_batch) {
    const std::int64_t now = options.batch.sequences;
    decisions.emplace_back(kMicroBatchKey, std::to_string(now));
    const auto before = parse_between(then.value(kMicroBatchKey), 1, config.train.global_batch);
    const std::string change =
        change_of_micro_batch(before.value_or(now), now, config.train.global_batch / run.world.size());
    if (change.empty()) {
      log.info("train.micro_batch = auto: {}", now);
    } else {
      log.warning("train.micro_batch = auto: {}; {}", now, change);
    }
  }
  if (undecided.checkpointing) {
    decisions.emplace_back(kCheckpointingKey, to_string(options.checkpointing));
    log.info("activation.checkpointing = auto: {}{}", to_string(options.checkpointing),
             options.offload.residuals ? ", with residuals in host memory" : "");
  }
  if (!config.activation.offload)
    decisions.emplace_back(kOffloadKey, word_of(options.offload.residuals ? ActivationOffload::residuals
                                                                          : ActivationOffload::none));
  if (undecided.most_attention_room > 0) {
    const std::int64_t now = options.batch.attention_room >> 20;
    decisions.emplace_back(kAttentionRoomKey, std::to_string(now));
    const model::LlamaConfig& llama = run.inputs.llama;
    const auto before = parse_between(then.value(kAttentionRoomKey), 0, kMostMib);
    const std::string change = change_of_attention({llama.query_heads, llama.key_value_heads, llama.head_dim},
                                                   options.batch, before.value_or(now), now);
    const bool uses_cudnn = options.precision.compute != DType::float32;
    if (uses_cudnn && !change.empty()) log.warning("run.attention_workspace = auto: {} MiB; {}", now, change);
  }
  if (undecided.logits) {
    const std::int64_t now = options.batch.logits_bytes >> 20;
    decisions.emplace_back(kLogitsRoomKey, std::to_string(now));
    if (const std::int64_t before = logits_before(then).value_or(now); before != now) {
      log.warning(
          "run.logits_workspace = auto: {} MiB; the run had {} MiB so far, which does not fit in memory here. Gradients are "
          "summed in another order, so the last bits differ",
          now, before);
    }
  }
  if (const std::string rooms = rooms_in_words(decisions); !rooms.empty()) log.info("{}", rooms);
  return decisions;
}

std::string change_of_micro_batch(std::int64_t before, std::int64_t now, std::int64_t per_rank) {
  if (before == now) return "";
  const std::string reason = per_rank % before != 0
                                 ? fmt::format("does not divide the {} of a rank and step", per_rank)
                                 : "does not fit in memory here";
  return fmt::format(
      "the run had {} so far, which {}. Gradients are summed in another order, so the last bits differ",
      before, reason);
}

std::string change_of_attention(device::AttentionShape shape, const model::BatchShape& batch,
                                std::int64_t before, std::int64_t now) {
  const auto longest_with_room = [&](std::int64_t mib) {
    const auto has_room = [&](std::int64_t length) {
      return device::attention_pieces(shape, 1, length, mib << 20) > 0;
    };
    if (has_room(batch.seq_len)) return batch.seq_len;
    int c = batch.documents ? device::LengthClasses::of(batch.seq_len) - 1 : -1;
    while (c >= 0 && !has_room(device::LengthClasses::longest(c))) --c;
    return c < 0 ? 0 : device::LengthClasses::longest(c);
  };
  const std::int64_t then = longest_with_room(before), here = longest_with_room(now);
  if (then == here) return "";
  return fmt::format(
      "the run had {} MiB so far, which {}. Attention of documents of more than {} tokens is computed by other kernels, so the "
      "last bits differ",
      before, now < before ? "does not fit in memory here" : "was less than fits here", std::min(then, here));
}

std::string with_decisions(std::string run_text, const Decisions& decisions) {
  for (const auto& [key, value] : decisions) run_text = with_value(run_text, key, value);
  return run_text;
}

}  // namespace llampi::train
