// SPDX-License-Identifier: Apache-2.0
#include "train/run_report.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <limits>
#include <numeric>
#include <sstream>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/memory_report.hpp"
#include "train/placement_note.hpp"
#include "train/run_warnings.hpp"

namespace llampi::train {
namespace {

std::map<std::string, std::int64_t> bytes_by_arena(const fsdp::ArenaBytes& bytes) {
  std::map<std::string, std::int64_t> by_arena;
  for (const auto arena : {fsdp::Arena::device, fsdp::Arena::host})
    by_arena[fsdp::to_string(arena)] = bytes[static_cast<std::size_t>(arena)];
  return by_arena;
}

}  // namespace

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

JobStart RunReport::job_start(std::int64_t step, std::int64_t total_steps) const {
  const auto& compiled = engine_.compiled();
  JobStart start{.step = step,
                 .total_steps = total_steps,
                 .tokens_per_step = config_.train.global_batch * config_.data.seq_len,
                 .parameters = inputs_.model->parameter_elements(),
                 .ranks = world_.size(),
                 .nodes = world_.topology().nodes,
                 .device = compute_.device().describe(),
                 .planned_bytes = bytes_by_arena(compiled.arena_bytes)};
  if (const auto peak = fsdp::peak_action(compiled.step)) {
    for (const auto& purpose : fsdp::bytes_alive_at(compiled.step, *peak))
      start.peak_bytes[fsdp::to_string(purpose.purpose)] += purpose.bytes;
  }
  return start;
}

std::map<std::string, std::int64_t> RunReport::used_bytes() const {
  return bytes_by_arena(engine_.memory().used());
}

void RunReport::describe_device() {
  const std::string description = compute_.device().describe();
  if (description == described_device_) return;
  log_.info("device: {}", description);
  described_device_ = description;
}

void RunReport::describe(std::int64_t total_steps) {
  const auto& topology = world_.topology();
  std::int64_t trained = 0;
  const auto& parameters = inputs_.model->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p)
    trained += engine_.options().parameter_groups[p].frozen ? 0 : parameters[p].elements();
  const auto all = inputs_.model->parameter_elements();
  log_.info("model: {}{}, {}, vocabulary {}", count(all, "parameter"),
            trained < all ? fmt::format(" ({} trained; the others frozen, in {})", with_separators(trained),
                                        fsdp::frozen_in_words(engine_.options().precision))
                          : "",
            count(inputs_.llama.layers, "layer"), with_separators(inputs_.llama.vocab_size));
  log_.info("data: {}, {} of {}, {} per epoch; {} in total", count(inputs_.train_file->tokens(), "token"),
            count(inputs_.train_file->samples(config_.data.seq_len), "sample"),
            count(config_.data.seq_len, "token"), count(inputs_.sampler->steps_per_epoch(), "step"),
            count(total_steps, "step"));
  log_.info("ranks: {} on {}; {}", world_.size(), count(topology.nodes, "node"), world_.describe());
  const auto& precision = engine_.options().precision;
  if (const auto note = placement_note(engine_.mesh(), precision, topology.node_of_rank); !note.empty())
    log_.info("sums: {}", sums_in_words(engine_.mesh(), precision, note));
  if (!topology.uniform) {
    log_.warning(
        "nodes have different numbers of ranks: in collectives over several nodes those of the smallest node have the most to receive, and the "
        "others wait for them; start the same number on each");
  }
  describe_device();
  log_.info("fsdp: {}", strategy_in_words());
  warn_of_keys_without_effect(config_, compute_.on_gpu(), engine_.mesh(), log_);
  if (config_.run.verify_replicas_every > 0 && config_.fsdp.shard_optimizer_over_replicas)
    log_.warning(
        "run.verify_replicas_every compares only the gathered parameters: with fsdp.shard_optimizer_over_replicas each replica has "
        "its own part of the optimizer state, and a wrong update is copied to all");
  describe_plan();
  log_.info("output: {}", config_.run.dir);
}

std::string RunReport::strategy_in_words() const {
  const auto& mesh = engine_.mesh();
  const int shards = mesh.shard_count(), replicas = mesh.replica_count();
  std::string over = fmt::format("shards over {}", count(shards, "rank"));
  if (shards == 1) over = count(replicas, "replica");
  if (shards > 1 && replicas > 1)
    over = fmt::format("{} of {} each", count(replicas, "shard group"), count(shards, "rank"));
  if (shards * replicas == 1) over = "1 rank";
  return fmt::format("{}, {}, {}", word_of(config_.fsdp.strategy), over,
                     count(std::ssize(engine_.compiled().units), "unit"));
}

void RunReport::describe_plan() {
  const auto& step = engine_.compiled().step;
  if (config_.log.plan) {
    log_.info("memory per rank, planned for a step:");
    std::istringstream plan(fsdp::format_memory(step));
    for (std::string line; std::getline(plan, line);) log_.info("  {}", line);
    return;
  }
  const auto [on_device, on_host] = engine_.compiled().arena_bytes;
  log_.info("memory: {} per rank planned{} (table: log.plan = true, or llampi plan)", format_bytes(on_device),
            on_host > 0 ? fmt::format(", {} of host memory", format_bytes(on_host)) : "");
}

void RunReport::describe_memory() {
  const auto& planned = engine_.compiled().arena_bytes;
  const auto used = engine_.memory().used();
  const std::int64_t resident = comm::max_over_ranks(world_, peak_resident_bytes());
  const auto sum = [](const auto& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  };
  log_.info("memory per rank: planned {}, used {}; resident, with program and libraries, at most {}",
            format_bytes(sum(planned)), format_bytes(sum(used)), format_bytes(resident));
  if (compute_.on_gpu()) describe_gpu_memory();
}

/// What is on the GPUs: the largest of each line over the ranks.
void RunReport::describe_gpu_memory() {
  const auto device = static_cast<std::size_t>(fsdp::Arena::device);
  const std::int64_t arena = engine_.compiled().arena_bytes[device], opened = compute_.gpu_opened_bytes;
  const std::int64_t all = compute_.gpu_bytes_in_use();
  std::int64_t bytes[] = {opened, all - opened - arena, all, -compute_.gpu_properties.memory_bytes,
                          gpu_process_bytes()};
  world_.max(bytes);
  log_.info(
      "GPU memory per rank: CUDA context and libraries {}, arena planned {} and used {}, NCCL's "
      "communicators and what was loaded since {}; in all {} of {} (of all that use it){}",
      format_bytes(bytes[0]), format_bytes(arena), format_bytes(engine_.memory().used()[device]),
      format_bytes(bytes[1]), format_bytes(bytes[2]), format_bytes(-bytes[3]),
      bytes[4] > 0 ? fmt::format("; this process has {}", format_bytes(bytes[4])) : "");
}

double RunReport::mfu(double tokens_per_second) const {
  const double peak = compute_.peak_flops(engine_.options().precision.compute);
  if (peak == 0) return std::numeric_limits<double>::quiet_NaN();
  return inputs_.model->flops_per_token(config_.data.seq_len) * tokens_per_second / peak;
}

std::int64_t RunReport::memory_bytes() const {
  return compute_.on_gpu() ? compute_.gpu_bytes_in_use() : peak_resident_bytes();
}

std::int64_t RunReport::gpu_process_bytes() {
  if (!process_memory_) return 0;
  const std::int64_t arena = engine_.compiled().arena_bytes[static_cast<std::size_t>(fsdp::Arena::device)];
  return process_memory_->bytes(compute_.gpu_bytes_in_use(), arena).value_or(-1);
}

}  // namespace llampi::train
