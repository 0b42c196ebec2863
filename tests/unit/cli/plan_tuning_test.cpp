// SPDX-License-Identifier: Apache-2.0
// The search of `llampi plan --tune` with plans of a real model, against a plan of every configuration.
#include "llampi/plan/tune_config.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <set>
#include <string>

#include "cli/keys.hpp"
#include "cli/option_table.hpp"
#include "cli/plan_machine.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/fit_decisions.hpp"
#include "llampi/model/llama.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

using namespace cli;
using train::Config;

/// Llama 3.2 1B with three of its sixteen blocks.
constexpr const char* kModel =
    R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
  "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 3, "num_attention_heads": 32,
  "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
  "rope_theta": 500000.0, "tie_word_embeddings": true})";

/// Ranks of a machine, and the configuration to begin with.
class PlanTuning : public ::testing::Test {
 protected:
  PlanTuning() {
    std::ofstream(folder_ / "config.json") << kModel;
    config_.model.config = (folder_ / "config.json").string();
    config_.data.seq_len = 2048;
  }

  void place(const MachineRequest& request, const train::RunShape& shape, std::int64_t sequences_of_a_rank) {
    config_.train.global_batch = sequences_of_a_rank * shape.ranks;
    machine_ = machine_of(request, config_, shape);
    figures_ = figures_of(request, machine_, config_, train::nodes_of_ranks(machine_.shape));
  }
  plan::TunedConfig tuned() const {
    return plan::tune_config({.config = config_,
                              .kept = kept_,
                              .keeps = [&](const Config& other) { return are_kept(kept_, config_, other); },
                              .name_of = key_of,
                              .machine = machine_,
                              .figures = *figures_});
  }

  std::vector<Config> all_configurations() const;

  struct Planned {
    double seconds = std::numeric_limits<double>::infinity();  ///< of a step, if it fits
    std::int64_t bytes = 0;                                    ///< of a device
  };
  /// With all its micro-batches. @throws UserError for what cannot be had
  Planned plan_of(const Config& config) const {
    const train::CompiledRun run = train::compile_run(config, machine_.shape);
    const fsdp::AvailableMemory memory = machine_.memory();
    const std::int64_t bytes = memory.needed_on_device(run.compiled.arena_bytes, run.mesh, run.options);
    if (!memory.holds(run.compiled.arena_bytes, run.mesh, run.options)) return {.bytes = bytes};
    return {plan::time_actions(run, *figures_).time.seconds, bytes};
  }

  /// That the search finds the fastest of all that fit, or one within 1 %, with far fewer plans.
  void expect_the_fastest_of_all(const std::string& what) const {
    double fastest = std::numeric_limits<double>::infinity();
    int plans = 0, fitting = 0;
    for (const Config& config : all_configurations()) {
      try {
        const double seconds = plan_of(config).seconds;
        ++plans;
        if (seconds == std::numeric_limits<double>::infinity()) continue;
        ++fitting;
        fastest = std::min(fastest, seconds);
      } catch (const UserError&) {
        continue;  // a run would be refused
      }
    }
    const plan::TunedConfig found = tuned();
    const Planned best = plan_of(found.config);
    std::cout << fmt::format(
        "{}: of {} plans {} fit, the fastest {:.2f} ms; the search made {} plans and timed {}: {:.2f} ms, {}\n",
        what, plans, fitting, 1e3 * fastest, found.tuning.tries, found.tuning.timed.size(),
        1e3 * best.seconds, format_bytes(best.bytes));
    EXPECT_GE(best.seconds, fastest * (1 - 1e-9)) << what << ": not one of all";
    EXPECT_LE(best.seconds, fastest * 1.01) << what;
    EXPECT_LT(3 * found.tuning.tries, plans) << what;
    EXPECT_LT(fitting, plans) << what << ": memory is short for none";
  }

  TemporaryFolder folder_;
  Config config_;
  std::set<std::string> kept_;
  plan::Machine machine_;
  std::optional<plan::Figures> figures_;
};

/// Each of `all` with each value.
template <class Values, class Set>
void vary(std::vector<Config>& all, const Values& values, const Set& set) {
  std::vector<Config> varied;
  for (const Config& config : all) {
    for (const auto& value : values) {
      varied.push_back(config);
      set(varied.back(), value);
    }
  }
  all = std::move(varied);
}

std::vector<Config> PlanTuning::all_configurations() const {
  const std::int64_t sequences = config_.train.global_batch / machine_.shape.ranks;
  std::vector<Config> all;
  for (const auto& [strategy, word] : word_table(fsdp::Strategy{})) {
    std::vector<Config> of_strategy = {train::with_strategy(config_, strategy)};
    if (fsdp::is_hybrid(strategy)) {
      std::vector<int> sizes;
      for (int size = 2; size < machine_.shape.ranks; size *= 2) sizes.push_back(size);
      vary(of_strategy, sizes, [](Config& c, int size) { c.fsdp.shard_group_size = size; });
    }
    if (fsdp::has_replicas(strategy)) {
      vary(of_strategy, std::array{false, true},
           [](Config& c, bool over) { c.fsdp.shard_optimizer_over_replicas = over; });
    }
    all.insert(all.end(), of_strategy.begin(), of_strategy.end());
  }
  std::vector<std::int64_t> micro_batches;
  for (std::int64_t size = 1; size <= sequences; size *= 2) micro_batches.push_back(size);
  vary(all, micro_batches, [](Config& c, std::int64_t size) { c.train.micro_batch = size; });
  using Accumulate = train::GradientAccumulation;
  vary(all, std::array{Accumulate::sharded, Accumulate::unsharded},
       [](Config& c, Accumulate how) { c.fsdp.accumulate = how; });
  const auto model = model::make_llama(model::LlamaConfig::read(config_.model.config));
  vary(all, fsdp::checkpointing_levels(*model),
       [](Config& c, const auto& level) { c.activation.checkpointing = level; });
  if (machine_.on_gpu()) {
    using Offload = train::CpuOffload;
    using Step = train::OffloadStep;
    vary(all, std::array{Offload::none, Offload::optimizer, Offload::params},
         [](Config& c, Offload what) { c.fsdp.cpu_offload = what; });
    vary(all, std::array{Step::device, Step::host},
         [](Config& c, Step where) { c.fsdp.offload_step = where; });
    using Activations = train::ActivationOffload;
    vary(all, std::array{Activations::none, Activations::residuals},
         [](Config& c, Activations what) { c.activation.offload = what; });
  }
  // What would be a second time what is there without it.
  std::erase_if(all, [&](const Config& c) {
    return (c.fsdp.accumulate == Accumulate::unsharded && c.train.micro_batch == sequences) ||
           (c.fsdp.offload_step == train::OffloadStep::host && c.fsdp.cpu_offload == train::CpuOffload::none);
  });
  return all;
}

TEST_F(PlanTuning, SaysWhatIsWrongWithTheConfigurationAsItIs) {
  MachineRequest request;
  request.machine = "workstation-2-cores";
  train::RunShape shape;
  shape.ranks = 2;
  shape.threads = 1;
  config_.train.micro_batch = 4;
  place(request, shape, 2);
  const auto found = tuned();
  EXPECT_FALSE(found.configured.has_value());
  ASSERT_EQ(found.notes.size(), 1U);
  EXPECT_EQ(found.notes.front(),
            "the configuration as given is refused: train.global_batch = 4 is less than 2 ranks x "
            "train.micro_batch = 4; use 1 rank, or train.micro_batch = 2, or train.global_batch = 8");
}

// What is `auto` is decided by what the inputs of all micro-batches leave, though fewer are compiled: all logits at a time have room
// in a step of 256, but not in one of 1024.
TEST_F(PlanTuning, LeavesRoomForTheInputsOfVeryManyMicroBatches) {
  MachineRequest request;
  request.machine = "h100";
  train::RunShape shape;
  shape.ranks = 2;
  config_.train.micro_batch = 8;
  config_.run.attention_workspace = 0;
  config_.activation.checkpointing = fsdp::Checkpointing::full;
  kept_ = {"fsdp.strategy", "train.micro_batch", "fsdp.accumulate", "activation.checkpointing"};
  place(request, shape, 8 * 256);
  request.memory_gib = static_cast<double>(plan_of(config_).bytes + (1 << 20)) / 0x1p30;
  place(request, shape, 8 * 1024);
  const plan::TunedConfig found = tuned();
  ASSERT_TRUE(found.configured.has_value());
  EXPECT_TRUE(found.configured->fits);
  EXPECT_EQ(found.configured->needed_bytes, plan_of(config_).bytes);
}

// 3400 plans each time: label `long`.
TEST_F(PlanTuning, DISABLED_FindsTheFastestOfAllOnGpus) {
  for (const double memory : {4.2, 4.7, 5.2, 6.}) {
    MachineRequest request;
    request.machine = "h100";
    request.memory_gib = memory;
    request.host_memory_gib = 200;
    train::RunShape shape;
    shape.ranks = 4;
    shape.ranks_per_node = 2;
    place(request, shape, 4);
    expect_the_fastest_of_all(fmt::format("{} GiB", memory));
  }
}

TEST_F(PlanTuning, FindsTheFastestOfAllOnCpus) {
  for (const double memory : {6.3, 6.6, 7., 8.}) {
    MachineRequest request;
    request.machine = "workstation-2-cores";
    request.memory_gib = memory;
    train::RunShape shape;
    shape.ranks = 2;
    shape.threads = 1;
    place(request, shape, 4);
    expect_the_fastest_of_all(fmt::format("{} GiB", memory));
  }
}

}  // namespace
}  // namespace llampi::test
