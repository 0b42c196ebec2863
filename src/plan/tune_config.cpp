// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/tune_config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <utility>

#include "llampi/core/integers.hpp"
#include "llampi/core/text.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/fsdp/added_work.hpp"
#include "llampi/fsdp/fit_decisions.hpp"
#include "llampi/fsdp/memory_report.hpp"
#include "llampi/fsdp/placement.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/train/micro_batches.hpp"

namespace llampi::plan {
namespace {

constexpr int kMicroBatches = 4;  // of a step that is compiled: each more takes as long as the last of these
constexpr int kManyMicroBatches = 256;  // likewise, of the steps that are printed

/// That lie inside nodes, or take whole nodes, and that of the configuration; the ranks of a node are 0.
std::vector<int> group_sizes(const TuneQuestion& q) {
  const Machine& m = q.machine;
  const int per_node = m.most_ranks_on_a_node();
  std::vector<int> sizes;
  for (const std::int64_t divisor : divisors(m.shape.ranks)) {
    const auto size = static_cast<int>(divisor);
    if (size == 1 || size == m.shape.ranks) continue;
    const bool is_node = m.even() && size == per_node;
    const bool is_given = q.config.fsdp.shard_group_size == size;
    if (per_node % size == 0 || size % per_node == 0 || is_given) sizes.push_back(is_node ? 0 : size);
  }
  return sizes;
}

std::vector<Sharding> shardings(const TuneQuestion& q) {
  const auto& f = q.config.fsdp;
  std::vector<Sharding> all;
  for (const auto& [strategy, word] : word_table(fsdp::Strategy{})) {
    if (!q.keeps(train::with_strategy(q.config, strategy))) continue;  // some do not have all keys
    std::vector<int> sizes = {0};
    if (fsdp::is_hybrid(strategy))
      sizes = q.kept.contains("fsdp.shard_group_size") ? std::vector{f.shard_group_size.value_or(0)}
                                                       : group_sizes(q);
    std::vector<bool> over_replicas = {false};
    if (q.kept.contains("fsdp.shard_optimizer_over_replicas")) {
      over_replicas = {f.shard_optimizer_over_replicas};
    } else if (fsdp::has_replicas(strategy) && q.machine.shape.ranks > 1) {
      over_replicas = {false, true};
    }
    for (const int size : sizes) {
      for (const bool over : over_replicas) all.push_back({strategy, size, over});
    }
  }
  return all;
}

Numbers configured_numbers(const TuneQuestion& q) {
  return {q.config.fsdp.param_dtype.value_or(q.machine.on_gpu() ? DType::bfloat16 : DType::float32),
          q.config.fsdp.product_dtype == train::ProductDtype::fp8};
}

/// A figure that the machine lacks, without which nothing can be predicted with these numbers; empty: there is none.
std::string missing_figure(const TuneQuestion& q, const Numbers& numbers) {
  if (!q.machine.on_gpu() || !q.figures.by_operation()) return "";
  const bool is_float32 = numbers.param == DType::float32;
  std::vector<const char*> needed = {is_float32 ? "product_tflops_float32" : "product_tflops_bfloat16"};
  if (numbers.fp8) needed.push_back("product_tflops_fp8");
  for (const char* key : needed) {
    if (q.figures.machine->find(key) == nullptr) return key;
  }
  return "";
}

std::vector<Numbers> numbers(const TuneQuestion& q, std::vector<std::string>& notes) {
  const Numbers now = configured_numbers(q);
  std::vector<Numbers> all = {now};
  if (!q.may_change_numbers) return all;
  for (const DType param : {DType::float32, DType::bfloat16}) {
    for (const bool fp8 : {false, true}) {
      const bool kept = (q.kept.contains("fsdp.param_dtype") && param != now.param) ||
                        (q.kept.contains("fsdp.product_dtype") && fp8 != now.fp8);
      const Numbers numbers{param, fp8};
      if (kept || numbers == now) continue;
      if (const std::string key = missing_figure(q, numbers); !key.empty()) {
        notes.push_back(fmt::format("fsdp.param_dtype = {}{} was not tried: machine {} has no figure {}",
                                    to_string(param), fp8 ? " with fsdp.product_dtype = fp8" : "",
                                    q.figures.machine->name, key));
        continue;
      }
      all.push_back(numbers);
    }
  }
  return all;
}

/// On CPUs host memory is all there is.
std::vector<fsdp::Offload> offloadings(const TuneQuestion& q, std::vector<std::string>& notes) {
  const fsdp::Offload now = train::offload_of(q.config);
  if (!q.machine.on_gpu()) return {now};
  const auto kept = [&](const fsdp::Offload& o) {
    return (!q.kept.contains("fsdp.cpu_offload") ||
            (o.optimizer == now.optimizer && o.params == now.params)) &&
           (!q.kept.contains("fsdp.offload_step") ||
            o.host_step == (q.config.fsdp.offload_step == train::OffloadStep::host)) &&
           (!q.kept.contains("activation.offload") || o.residuals == now.residuals);
  };
  std::vector<fsdp::Offload> all;
  for (const bool residuals : {false, true}) {
    for (const auto& [optimizer, params, host_step] :
         {std::tuple(false, false, false), std::tuple(true, false, false), std::tuple(true, false, true),
          std::tuple(true, true, false), std::tuple(true, true, true)}) {
      const fsdp::Offload o{optimizer, params, host_step, residuals};
      const bool host_is_known = q.machine.host_memory_bytes > 0 || !offloads_anything(o) || o == now;
      if (kept(o) && host_is_known) all.push_back(o);
    }
  }
  if (q.machine.host_memory_bytes == 0)
    notes.emplace_back(
        "fsdp.cpu_offload and activation.offload were not tried: the memory of the host is not known; add --host-memory");
  return all;
}

TuneSpace space_of(const TuneQuestion& q, const model::Model& model, std::vector<std::string>& notes) {
  TuneSpace space;
  space.shardings = shardings(q);
  space.numbers = numbers(q, notes);
  space.sequences = q.config.train.global_batch / q.machine.shape.ranks;
  space.micro_batches = divisors(space.sequences);
  if (q.kept.contains("train.micro_batch") && q.config.train.micro_batch)
    space.micro_batches = {*q.config.train.micro_batch};
  space.accumulate_unsharded = {false, true};
  if (q.kept.contains("fsdp.accumulate"))
    space.accumulate_unsharded = {q.config.fsdp.accumulate == train::GradientAccumulation::unsharded};
  space.offloadings = offloadings(q, notes);
  space.checkpointing = fsdp::checkpointing_levels(model);
  if (q.kept.contains("activation.checkpointing") && q.config.activation.checkpointing)
    space.checkpointing = {*q.config.activation.checkpointing};
  return space;
}

train::Config with_choice(const TuneQuestion& q, const Choice& choice) {
  train::Config config = train::with_strategy(q.config, choice.sharding.strategy);
  auto& f = config.fsdp;
  if (fsdp::is_hybrid(choice.sharding.strategy)) {
    f.shard_group_size.reset();
    if (choice.sharding.group_size > 0) f.shard_group_size = choice.sharding.group_size;
  }
  f.shard_optimizer_over_replicas = choice.sharding.optimizer_over_replicas;
  if (choice.numbers != configured_numbers(q)) {
    f.param_dtype = choice.numbers.param;
    f.product_dtype = choice.numbers.fp8 ? train::ProductDtype::fp8 : train::ProductDtype::automatic;
  }
  config.train.micro_batch = choice.micro_batch;
  f.accumulate = choice.accumulate_unsharded ? train::GradientAccumulation::unsharded
                                             : train::GradientAccumulation::sharded;
  config.activation.checkpointing = choice.checkpointing;
  if (choice.offloading == train::offload_of(q.config)) return config;
  f.cpu_offload = choice.offloading.params      ? train::CpuOffload::params
                  : choice.offloading.optimizer ? train::CpuOffload::optimizer
                                                : train::CpuOffload::none;
  f.offload_step = choice.offloading.host_step ? train::OffloadStep::host : train::OffloadStep::device;
  config.activation.offload =
      choice.offloading.residuals ? train::ActivationOffload::residuals : train::ActivationOffload::none;
  return config;
}

/// Compiles and times choices. Steps of many micro-batches are compiled with few, and their time is continued.
class Trials {
 public:
  explicit Trials(const TuneQuestion& question) : q_(question) {}

  Trial operator()(const Choice& choice) const {
    return in_words([&] {
      const train::Config config = with_choice(q_, choice);
      // Room for deterministic attention is decided last, by what is left.
      const Run searched = compile(with_room(config, most_room() / 8), kMicroBatches);
      Trial trial;
      std::tie(trial.needed_bytes, trial.host_needed_bytes) = bytes_of(config, *searched);
      trial.fits_on_device = memory_.device_holds(trial.needed_bytes);
      trial.fits_on_host = memory_.host_holds(trial.host_needed_bytes);
      trial.at_least = [this, config, searched] {
        return in_words([&] { return time(config, *searched, with_most_room(searched->options)).seconds; });
      };
      trial.time = [this, config, choice] {
        TimedChoice timed = in_words([&] { return measured(config, kMicroBatches); });
        timed.choice = choice;
        return timed;
      };
      return trial;
    });
  }

  /// Seconds of layers and optimizer, which are least with full_shard and the same with all offloading; 0 if full_shard cannot be had.
  double computing(const Choice& choice) const {
    const auto key = std::tuple(choice.numbers.param, choice.numbers.fp8, choice.micro_batch,
                                choice.accumulate_unsharded, choice.checkpointing.blocks);
    const auto known = computing_.find(key);
    if (known != computing_.end()) return known->second;
    Choice least = choice;
    least.sharding = {};
    least.offloading = {};
    double seconds = 0;
    try {
      seconds = seconds_of_computing(with_choice(q_, least));
    } catch (const UserError&) {
      seconds = 0;  // a trial says why
    }
    return computing_[key] = seconds;
  }

  /// With what `auto` chooses of activations, which is more than the search tries: what feed-forwards save in host memory. Nothing
  /// if the machine file cannot predict it.
  std::optional<TimedChoice> with_decided_activations(const Choice& choice) const {
    train::Config config = with_choice(q_, choice);
    config.activation.checkpointing.reset();
    config.activation.offload.reset();
    try {
      TimedChoice timed = measured(config, kMicroBatches);
      timed.choice.numbers = choice.numbers;
      return timed;
    } catch (const UserError&) {
      return std::nullopt;
    }
  }

  /// As a run would have it, with all its micro-batches, if there are not very many.
  TimedChoice exactly(const train::Config& config) const { return measured(config, kManyMicroBatches); }

 private:
  using Run = std::shared_ptr<const train::CompiledRun>;

  /// @throws UserError as `work` does, with the options of this program
  template <class Work>
  std::invoke_result_t<Work> in_words(const Work& work) const {
    try {
      return work();
    } catch (const UserError& error) {
      throw UserError(sentence_of(error, q_.name_of));
    }
  }

  double seconds_of_computing(const train::Config& config) const {
    const Run run = compile(with_room(config, most_room() / 8), 2);
    const TimedActions timed = time_actions(*run, with_most_room(run->options), q_.figures);
    std::vector<double> of_micro_batch(static_cast<std::size_t>(run->options.micro_batches));
    double sum = 0;
    for (std::size_t i = 0; i < timed.phases.size(); ++i) {
      const fsdp::Action& action = run->compiled.step.actions[i];
      if (fsdp::is_of_layer(action)) {
        of_micro_batch.at(static_cast<std::size_t>(action.micro_batch)) += seconds(timed.phases[i]);
      } else if (q_.figures.by_operation() && timed.work[i].optimizes) {
        sum += seconds_of(timed.work[i].amounts, *timed.speed.costs);
      }
    }
    const std::int64_t more = micro_batches(config) - run->options.micro_batches;
    return std::accumulate(of_micro_batch.begin(), of_micro_batch.end(), sum) +
           static_cast<double>(more) * of_micro_batch.back();
  }

  TimedChoice measured(const train::Config& config, std::int64_t most_micro_batches) const {
    Run run = compile(config, most_micro_batches);
    auto [needed, host_needed] = bytes_of(config, *run);
    if (!memory_.device_holds(needed) || !memory_.host_holds(host_needed)) {
      run = compile(config, most_micro_batches, left_by_inputs(config, *run));
      std::tie(needed, host_needed) = bytes_of(config, *run);
    }
    TimedChoice timed;
    timed.time = time(config, *run,
                      run->options);  // GCC 12 destroys members of an aggregate twice if a later one throws
    timed.needed_bytes = needed;
    timed.host_needed_bytes = host_needed;
    timed.fits = memory_.device_holds(needed) && memory_.host_holds(host_needed);
    timed.choice = {
        .sharding = {run->options.strategy, run->options.shard_group_size,
                     run->options.shard_optimizer_over_replicas},
        .numbers = configured_numbers(q_),
        .micro_batch = run->options.batch.sequences,
        .accumulate_unsharded = run->options.accumulate_unsharded && run->options.micro_batches > 1,
        .offloading = train::offload_of(config),
        .checkpointing = run->options.checkpointing};
    timed.choice.offloading.residuals = run->options.offload.residuals;
    timed.accumulates = run->options.micro_batches > 1;
    return timed;
  }

  std::int64_t most_room() const { return fsdp::most_attention_room(q_.machine.memory_bytes); }
  train::Config with_room(train::Config config, std::int64_t bytes) const {
    if (q_.machine.on_gpu() && !q_.config.run.attention_workspace)
      config.run.attention_workspace = bytes >> 20;
    if (!config.run.logits_workspace)
      config.run.logits_workspace = device::kLogitsBytes >> 20;  // larger only if memory is left
    return config;
  }
  fsdp::EngineOptions with_most_room(fsdp::EngineOptions options) const {
    if (q_.machine.on_gpu() && !q_.config.run.attention_workspace) options.batch.attention_room = most_room();
    return options;
  }
  std::int64_t micro_batches(const train::Config& config) const {
    return q_.config.train.global_batch / (q_.machine.shape.ranks * config.train.micro_batch.value_or(1));
  }
  Run compile(const train::Config& config, std::int64_t most_micro_batches) const {
    return compile(config, most_micro_batches, q_.machine.shape.memory);
  }
  /// @param memory by which what is `auto` is decided
  Run compile(train::Config config, std::int64_t most_micro_batches,
              const fsdp::AvailableMemory& memory) const {
    const std::int64_t all = train::micro_batches_of_step(config, q_.machine.shape.ranks);
    if (config.train.micro_batch && config.fsdp.sum_order == fsdp::SumOrder::any)
      config.train.global_batch =
          std::min(all, most_micro_batches) * q_.machine.shape.ranks * *config.train.micro_batch;
    train::RunShape shape = q_.machine.shape;
    shape.memory = memory;
    return std::make_shared<const train::CompiledRun>(train::compile_run(config, shape));
  }
  /// The memory without the inputs of the micro-batches that the run was not compiled with.
  fsdp::AvailableMemory left_by_inputs(const train::Config& config, const train::CompiledRun& run) const {
    fsdp::AvailableMemory left = q_.machine.shape.memory;
    const auto without = [](std::optional<std::int64_t>& bytes, std::int64_t needed, std::int64_t of_run) {
      if (bytes) bytes = std::max<std::int64_t>(*bytes - (needed - of_run), 1);
    };
    const auto [needed, host_needed] = bytes_of(config, run);
    const auto& arena_bytes = run.compiled.arena_bytes;
    without(left.on_device, needed, memory_.needed_on_device(arena_bytes, run.mesh, run.options));
    without(left.on_host, host_needed, memory_.needed_on_host(arena_bytes));
    return left;
  }
  /// With the inputs of all its micro-batches, though the run was compiled with fewer.
  std::pair<std::int64_t, std::int64_t> bytes_of(const train::Config& config,
                                                 const train::CompiledRun& run) const {
    auto arena_bytes = run.compiled.arena_bytes;
    const std::int64_t more =
        config.train.micro_batch ? micro_batches(config) - run.options.micro_batches : 0;
    for (const auto& row : fsdp::bytes_by_purpose(run.compiled.step)) {
      const bool is_input = row.purpose == fsdp::Purpose::inputs || row.purpose == fsdp::Purpose::host_inputs;
      if (!is_input || more <= 0) continue;
      const auto losses = more * static_cast<std::int64_t>(sizeof(double));  // one of each micro-batch
      arena_bytes[static_cast<std::size_t>(row.arena)] +=
          more * fsdp::in_arena(row.bytes / row.buffers) + fsdp::in_arena(losses);
    }
    return {memory_.needed_on_device(arena_bytes, run.mesh, run.options),
            memory_.needed_on_host(arena_bytes)};
  }
  /// Of all its micro-batches.
  /// @param run of the configuration, with a few of them
  /// @param options of the run, with any room for attention
  StepTime time(const train::Config& config, const train::CompiledRun& run,
                const fsdp::EngineOptions& options) const {
    StepTime few = time_compiled(run, options);
    const std::int64_t more =
        config.train.micro_batch ? micro_batches(config) - run.options.micro_batches : 0;
    if (more <= 0) return few;
    const Run compiled =
        compile(with_room(config, run.options.batch.attention_room), run.options.micro_batches - 1);
    fsdp::EngineOptions fewer_options = options;
    fewer_options.micro_batches = compiled->options.micro_batches;
    const StepTime fewer = time_compiled(*compiled, fewer_options);
    few.seconds += static_cast<double>(more) * (few.seconds - fewer.seconds);
    few.compute_seconds += static_cast<double>(more) * (few.compute_seconds - fewer.compute_seconds);
    return few;
  }
  StepTime time_compiled(const train::CompiledRun& run, const fsdp::EngineOptions& options) const {
    return time_actions(run, options, q_.figures).time;
  }

  const TuneQuestion& q_;
  const fsdp::AvailableMemory memory_ = q_.machine.memory();
  mutable std::map<std::tuple<DType, bool, std::int64_t, bool, std::vector<fsdp::Checkpointing>>, double>
      computing_;
};

void require_divisible(const TuneQuestion& q) {
  const std::int64_t given = q.config.train.global_batch, ranks = q.machine.shape.ranks;
  if (given % ranks == 0) return;
  const std::int64_t below = given / ranks * ranks;
  throw_user_error("--tune keeps train.global_batch = {}, which cannot be divided among {}; use {}{}", given,
                   count(ranks, "rank"), below > 0 ? fmt::format("{} or ", below) : "", below + ranks);
}

std::string nothing_fits(const TuneQuestion& q, const Tuning& tuning) {
  const std::string reason = tuning.impossible.empty() ? "" : *tuning.impossible.begin()->second.begin();
  if (tuning.least_needed_bytes == 0 && tuning.least_host_needed_bytes == 0)
    return fmt::format("none of {} is possible: {}", count(tuning.candidates, "combination"), reason);
  std::vector<std::string> needs;
  if (tuning.least_needed_bytes > 0)
    needs.push_back(fmt::format("even the smallest needs {}, but {} has {}",
                                format_bytes(tuning.least_needed_bytes), q.machine.device_in_words(),
                                q.machine.memory_in_words()));
  if (tuning.least_host_needed_bytes > 0)
    needs.push_back(fmt::format("with offloading a node needs {} of host memory at least, but has {}",
                                format_bytes(tuning.least_host_needed_bytes),
                                format_bytes(q.machine.host_memory_bytes)));
  return fmt::format("none of {} fits: {}{}; use more ranks, a shorter data.seq_len or state in bfloat16{}",
                     count(tuning.candidates, "combination"), fmt::join(needs, ", and "),
                     reason.empty() ? "" : fmt::format(" (some are not possible: {})", reason),
                     q.machine.on_gpu() && q.machine.host_memory_bytes == 0
                         ? ", or allow offloading with --host-memory"
                         : "");
}

/// If `auto` makes one of the best combinations faster than the first.
void put_decided_activations_first(const TuneQuestion& q, const Trials& trials,
                                   std::vector<TimedChoice>& timed) {
  constexpr std::size_t kBest = 6;
  const bool may_offload = q.machine.on_gpu() && q.machine.host_memory_bytes > 0;
  if (!may_offload || q.kept.contains("activation.checkpointing") || q.kept.contains("activation.offload"))
    return;
  std::optional<TimedChoice> best;
  for (std::size_t i = 0; i < std::min(timed.size(), kBest); ++i) {
    const auto decided = trials.with_decided_activations(timed[i].choice);
    const double to_beat = (best ? *best : timed.front()).time.seconds;
    if (decided && decided->fits && decided->time.seconds < to_beat) best = decided;
  }
  if (best) timed.insert(timed.begin(), *best);
}

}  // namespace

TunedConfig tune_config(const TuneQuestion& q) {
  require_divisible(q);
  TunedConfig tuned;
  const Trials trials(q);
  std::string refused;
  try {
    tuned.configured = trials.exactly(q.config);
  } catch (const UserError& error) {
    refused = sentence_of(error, q.name_of);
    tuned.notes.push_back("the configuration as given is refused: " + refused);
  }
  const auto model = model::make_llama(model::LlamaConfig::read(q.config.model.config));
  const TuneSpace space = space_of(q, *model, tuned.notes);
  if (space.candidates() == 0) throw_user_error("{}", refused);  // keys that are kept contradict each other
  tuned.tuning = tune(
      space, [&](const Choice& choice) { return trials.computing(choice); }, std::cref(trials));
  auto& timed = tuned.tuning.timed;
  if (timed.empty()) throw_user_error("{}", nothing_fits(q, tuned.tuning));
  put_decided_activations_first(q, trials, timed);
  const Choice choice = timed.front().choice;
  tuned.config = with_choice(q, choice);
  timed.front() = trials.exactly(tuned.config);
  timed.front().choice = choice;
  const auto& configured = tuned.configured;
  if (configured && configured->fits && configured->time.seconds <= timed.front().time.seconds) {
    tuned.config = q.config;
    timed.insert(timed.begin(), *configured);
  }
  return tuned;
}

}  // namespace llampi::plan
