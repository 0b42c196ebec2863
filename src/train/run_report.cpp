// SPDX-License-Identifier: Apache-2.0
#include "train/run_report.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <limits>
#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/split.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/added_work.hpp"
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

RunReport::RunReport(const RunSetup& run) : run_(run) {
  const auto flops = [&](double labels) {
    return fsdp::flops_per_token(*run.inputs.model, run.engine->options(), run.engine->compiled(), labels);
  };
  flops_without_labels_ = flops(0);
  flops_of_a_label_ = flops(1) - flops_without_labels_;
  if (run.compute.on_gpu())
    process_memory_ = std::make_unique<device::GpuProcessMemory>(run.compute.gpu_properties.bus_id);
}

JobStart RunReport::job_start(std::int64_t step, std::int64_t total_steps) const {
  const auto& compiled = run_.engine->compiled();
  JobStart start{.step = step,
                 .total_steps = total_steps,
                 .tokens_per_step = run_.config.train.global_batch * run_.config.data.seq_len,
                 .parameters = run_.inputs.model->parameter_elements(),
                 .ranks = run_.world.size(),
                 .nodes = run_.world.topology().nodes,
                 .device = run_.compute.device().describe(),
                 .planned_bytes = bytes_by_arena(compiled.arena_bytes)};
  if (const auto peak = fsdp::peak_action(compiled.step)) {
    for (const auto& purpose : fsdp::bytes_alive_at(compiled.step, *peak))
      start.peak_bytes[fsdp::to_string(purpose.purpose)] += purpose.bytes;
  }
  return start;
}

std::map<std::string, std::int64_t> RunReport::used_bytes() const {
  return bytes_by_arena(run_.engine->memory().used());
}

void RunReport::describe_device() {
  const std::string description = run_.compute.device().describe();
  if (description == described_device_) return;
  run_.log.info("device: {}", description);
  described_device_ = description;
}

void RunReport::describe_data(std::int64_t total_steps) {
  const auto& data = *run_.inputs.train;
  std::int64_t tokens = 0, padding = 0;
  for (const auto& part : data.parts()) {
    tokens += part.file.tokens();
    padding += part.file.notes().padding_tokens;
  }
  const auto files = std::ssize(data.parts());
  run_.log.info("data: {}{}{}, {} of {}, {} per epoch; {} in total", count(tokens - padding, "token"),
                padding > 0 ? fmt::format(" and {} of padding", with_separators(padding)) : "",
                files > 1 ? fmt::format(" in {}", count(files, "file")) : "", count(data.samples(), "sample"),
                count(run_.config.data.seq_len, "token"),
                count(run_.inputs.sampler->steps_per_epoch(), "step"), count(total_steps, "step"));
  constexpr std::ptrdiff_t kMostToList = 20;
  if (files == 1 || files > kMostToList) return;
  for (const auto& part : data.parts()) {
    run_.log.info("data: {}: {} times {}, {:.1f} % of an epoch", part.file.path().string(),
                  count(part.samples, "sample"), part.times,
                  100 * static_cast<double>(part.drawn) / static_cast<double>(data.samples()));
  }
}

void RunReport::describe(std::int64_t total_steps) {
  const auto& topology = run_.world.topology();
  std::int64_t trained = 0;
  const auto& parameters = run_.inputs.model->parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p)
    trained += run_.engine->options().parameter_groups[p].frozen ? 0 : parameters[p].elements();
  const auto all = run_.inputs.model->parameter_elements();
  run_.log.info("model: {}{}, {}, vocabulary {}", count(all, "parameter"),
                trained < all
                    ? fmt::format(" ({} trained; the others frozen, in {})", with_separators(trained),
                                  fsdp::frozen_in_words(run_.engine->options().precision))
                    : "",
                count(run_.inputs.llama.layers, "layer"), with_separators(run_.inputs.llama.vocab_size));
  describe_data(total_steps);
  run_.log.info("ranks: {} on {}; {}", run_.world.size(), count(topology.nodes, "node"),
                run_.compute.world().describe());
  const auto& precision = run_.engine->options().precision;
  if (const auto note = placement_note(run_.engine->mesh(), precision, topology.node_of_rank); !note.empty())
    run_.log.info("sums: {}", sums_in_words(run_.engine->mesh(), precision, note));
  if (!topology.uniform) {
    run_.log.warning(
        "nodes have different numbers of ranks: in collectives over several nodes those of the smallest node have the most to receive, and the "
        "others wait for them; start the same number on each");
  }
  describe_device();
  run_.log.info("fsdp: {}", strategy_in_words());
  if (run_.config.train.eval_every > 0) {
    for (const auto& file : run_.inputs.eval_files)
      note_incomplete_sample(file, run_.config.data.seq_len, run_.log);
  }
  warn_of_keys_without_effect(run_.config, run_.compute.on_gpu(), run_.engine->mesh(), run_.log);
  if (run_.config.run.verify_replicas_every > 0 && run_.config.fsdp.shard_optimizer_over_replicas)
    run_.log.warning(
        "run.verify_replicas_every compares only the gathered parameters: with fsdp.shard_optimizer_over_replicas each replica has "
        "its own part of the optimizer state, and a wrong update is copied to all");
  describe_plan();
  run_.log.info("output: {}", run_.config.run.dir);
}

std::string RunReport::strategy_in_words() const {
  const auto& mesh = run_.engine->mesh();
  const int shards = mesh.shard_count(), replicas = mesh.replica_count();
  std::string over = fmt::format("shards over {}", count(shards, "rank"));
  if (shards == 1) over = count(replicas, "replica");
  if (shards > 1 && replicas > 1)
    over = fmt::format("{} of {} each", count(replicas, "shard group"), count(shards, "rank"));
  if (shards * replicas == 1) over = "1 rank";
  return fmt::format("{}, {}, {}", word_of(run_.config.fsdp.strategy), over,
                     count(std::ssize(run_.engine->compiled().units), "unit"));
}

void RunReport::describe_plan() {
  const auto& step = run_.engine->compiled().step;
  if (run_.config.log.plan) {
    run_.log.info("memory per rank, planned for a step:");
    for (const auto& line : lines_of(fsdp::format_memory(step))) run_.log.info("  {}", line);
    return;
  }
  const auto [on_device, on_host] = run_.engine->compiled().arena_bytes;
  run_.log.info("memory: {} per rank planned{} (table: log.plan = true, or llampi plan)",
                format_bytes(on_device),
                on_host > 0 ? fmt::format(", {} of host memory", format_bytes(on_host)) : "");
}

void RunReport::describe_memory() {
  const auto& planned = run_.engine->compiled().arena_bytes;
  const auto used = run_.engine->memory().used();
  const std::int64_t resident = comm::max_over_ranks(run_.world, peak_resident_bytes());
  run_.log.info("memory per rank: planned {}, used {}; resident, with program and libraries, at most {}",
                format_bytes(fsdp::total(planned)), format_bytes(fsdp::total(used)), format_bytes(resident));
  if (run_.compute.on_gpu()) describe_gpu_memory();
}

void RunReport::describe_graphs() {
  if (run_.engine->graph_counts().without_room == 0 || std::exchange(has_described_graphs_, true)) return;
  run_.log.info(
      "CUDA graphs: there is too little memory to capture this step; steps of its shape launch their kernels one by one");
}

/// What is on the GPUs: the largest of each line over the ranks.
void RunReport::describe_gpu_memory() {
  const auto device = static_cast<std::size_t>(fsdp::Arena::device);
  const std::int64_t arena = run_.engine->compiled().arena_bytes[device],
                     opened = run_.compute.gpu_opened_bytes;
  const std::int64_t all = run_.compute.gpu_bytes_in_use();
  std::int64_t bytes[] = {opened, all - opened - arena, all, -run_.compute.gpu_properties.memory_bytes,
                          gpu_process_bytes()};
  run_.world.max(bytes);
  run_.log.info(
      "GPU memory per rank: CUDA context and libraries {}, arena planned {} and used {}, NCCL's "
      "communicators and what was loaded since {}; in all {} of {} (of all that use it){}",
      format_bytes(bytes[0]), format_bytes(arena), format_bytes(run_.engine->memory().used()[device]),
      format_bytes(bytes[1]), format_bytes(bytes[2]), format_bytes(-bytes[3]),
      bytes[4] > 0 ? fmt::format("; this process has {}", format_bytes(bytes[4])) : "");
}

double RunReport::mfu(double tokens_per_second, double labels) const {
  const double peak = run_.compute.peak_flops(run_.engine->options().precision.compute);
  if (peak == 0) return std::numeric_limits<double>::quiet_NaN();
  return (flops_without_labels_ + labels * flops_of_a_label_) * tokens_per_second / peak;
}

std::int64_t RunReport::memory_bytes() const {
  return run_.compute.on_gpu() ? run_.compute.gpu_bytes_in_use() : peak_resident_bytes();
}

std::int64_t RunReport::gpu_process_bytes() {
  if (!process_memory_) return 0;
  const std::int64_t arena =
      run_.engine->compiled().arena_bytes[static_cast<std::size_t>(fsdp::Arena::device)];
  return process_memory_->bytes(run_.compute.gpu_bytes_in_use(), arena).value_or(-1);
}

}  // namespace llampi::train
