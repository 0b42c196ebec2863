// SPDX-License-Identifier: Apache-2.0
// The engine's choices, asked for as a user does: each continues with equal bits and learns.
#include <gmock/gmock.h>

#include <set>

#include "llampi/comm/comm.hpp"
#include "ranks/train/run_fixture.hpp"

namespace llampi::test {
namespace {

using namespace train;

struct Choice {
  std::string name;
  std::function<void(Config&)> apply;
};

std::vector<Choice> choices() {
  return {
      {"shard_grad_op", [](Config& c) { c.fsdp.strategy = fsdp::Strategy::shard_grad_op; }},
      {"hybrid",
       [](Config& c) { c.fsdp.strategy = fsdp::Strategy::hybrid_shard, c.fsdp.shard_group_size = 2; }},
      {"hybrid_zero2",
       [](Config& c) { c.fsdp.strategy = fsdp::Strategy::hybrid_shard_zero2, c.fsdp.shard_group_size = 1; }},
      {"state_over_replicas",
       [](Config& c) {
         c.fsdp.strategy = fsdp::Strategy::no_shard, c.fsdp.shard_optimizer_over_replicas = true;
         c.run.verify_replicas_every = 3;
       }},
      {"wrap_size", [](Config& c) { c.fsdp.wrap = fsdp::WrapPolicy::size, c.fsdp.wrap_min_params = 1000; }},
      {"wrap_modules",
       [](Config& c) {
         c.fsdp.wrap = fsdp::WrapPolicy::modules, c.fsdp.wrap_modules = {"LlamaAttention", "\\.mlp$"};
       }},
      {"wrap_none", [](Config& c) { c.fsdp.wrap = fsdp::WrapPolicy::none; }},
      {"unsharded", [](Config& c) { c.fsdp.accumulate = GradientAccumulation::unsharded; }},
      {"bfloat16", [](Config& c) { c.fsdp.param_dtype = c.fsdp.reduce_dtype = DType::bfloat16; }},
      {"float16", [](Config& c) { c.fsdp.param_dtype = c.fsdp.reduce_dtype = DType::float16; }},
      {"short_state",
       [](Config& c) {
         c.fsdp.param_dtype = c.optimizer.master_dtype = c.optimizer.moment_dtype = DType::bfloat16;
       }},
      {"offload_optimizer", [](Config& c) { c.fsdp.cpu_offload = CpuOffload::optimizer; }},
      {"offload_optimizer_host",
       [](Config& c) {
         c.fsdp.cpu_offload = CpuOffload::optimizer, c.fsdp.offload_step = OffloadStep::host;
       }},
      {"offload_params", [](Config& c) { c.fsdp.cpu_offload = CpuOffload::params; }},
      {"offload_params_host",
       [](Config& c) { c.fsdp.cpu_offload = CpuOffload::params, c.fsdp.offload_step = OffloadStep::host; }},
      {"frozen",
       [](Config& c) {
         c.optimizer.frozen = "embed_tokens|layers\\.0\\.|k_proj|norm";
         c.optimizer.lr_factors = "lm_head=0.5 mlp=2";
         c.optimizer.weight_decays = "lm_head=0";
       }},
      {"full", [](Config& c) { c.activation.checkpointing = fsdp::Checkpointing::full; }},
      {"selective", [](Config& c) { c.activation.checkpointing = fsdp::Checkpointing::selective; }},
  };
}

bool possible(const Choice& choice, int ranks) {
  if (choice.name == "hybrid") return ranks % 2 == 0 && ranks > 2;
  return choice.name != "hybrid_zero2" || ranks > 1;
}

TEST_F(Train, EveryChoiceContinuesWithEqualBits) {
  for (const auto& choice : choices()) {
    if (!possible(choice, world().size())) continue;
    SCOPED_TRACE(choice.name);
    const auto whole_name = fmt::format("whole-{}", choice.name),
               name = fmt::format("resumed-{}", choice.name);
    auto whole = config(whole_name);
    choice.apply(whole);
    EXPECT_EQ(run(whole), Outcome::done);
    const auto lines = metrics(whole_name);
    EXPECT_LT(lines.back()["loss"].get<double>(), lines.front()["loss"].get<double>());

    expect_equal_bits_from_step_8(whole, whole_name, name);
  }
}

TEST_F(Train, SchedulingAloneDoesNotChangeTheRun) {
  run(config("plain"));
  for (const auto& choice : choices()) {
    const std::set<std::string> scheduling = {"shard_grad_op",     "wrap_size",      "wrap_modules",
                                              "wrap_none",         "full",           "selective",
                                              "offload_optimizer", "offload_params", "offload_params_host"};
    if (!scheduling.count(choice.name)) continue;
    SCOPED_TRACE(choice.name);
    auto c = config(choice.name);
    choice.apply(c);
    run(c);
    EXPECT_EQ(curve(choice.name), curve("plain"));
    EXPECT_EQ(tensors(choice.name, 12), tensors("plain", 12));
  }
}

TEST_F(Train, ACheckpointOfOneStrategyContinuesInAnother) {
  auto first = config("first");
  first.fsdp.wrap = fsdp::WrapPolicy::none;
  run(first);
  copy_checkpoint("first", "second", 8);
  auto second = config("second");
  second.fsdp.strategy = fsdp::Strategy::no_shard;
  second.fsdp.shard_optimizer_over_replicas = true;
  second.activation.checkpointing = fsdp::Checkpointing::full;
  EXPECT_EQ(run(second), Outcome::done);
  EXPECT_EQ(tensors("second", 12), tensors("first", 12));
}

TEST_F(Train, FrozenParametersKeepTheirInitialValuesAndHaveNoMoments) {
  auto c = config("a");
  c.optimizer.frozen = "layers\\.0\\.|q_proj";
  run(c);
  auto start = config("start");
  start.optimizer.lr = 0;
  start.optimizer.min_lr = 0;
  start.train.steps = 1;
  start.checkpoint.every = 1;
  run(start);
  const auto initial = tensors("start", 1), final = tensors("a", 12);
  const auto infos =
      checkpoint::read_checkpoint_summary(checkpoint::checkpoint_path(folder_ / "a", 12)).tensors;
  std::set<bool> kinds;
  for (std::size_t t = 0; t < infos.size(); ++t) {
    const auto& name = infos[t].name;
    const bool frozen =
        name.find("layers.0.") != std::string::npos || name.find("q_proj") != std::string::npos;
    kinds.insert(frozen);
    EXPECT_EQ(infos[t].optimizer, !frozen) << name;
    EXPECT_EQ(final[3 * t] == initial[3 * t], frozen) << name;
  }
  EXPECT_EQ(kinds.size(), 2U);
}

TEST_F(Train, WhatWasFrozenIsTrainedLaterOnlyIfThatIsMeant) {
  auto first = config("a");
  first.optimizer.frozen = "embed_tokens";
  first.train.steps = 8;
  first.optimizer.schedule = optim::Decay::constant;
  run(first);
  auto second = first;
  second.optimizer.frozen = "";
  second.train.steps = 12;
  EXPECT_THAT(refusal(second), ::testing::HasSubstr("embed_tokens"));
  second.run.resume_with_changes = true;
  EXPECT_EQ(run(second), Outcome::done);
}

TEST_F(Train, AnOverflowLeavesTheStepOutOnAllRanksHalvesTheScaleAndTrainingGoesOn) {
  auto c = config("a");
  c.fsdp.param_dtype = DType::float16;
  c.fsdp.reduce_dtype = DType::float16;
  const double far = 0x1p26;
  c.optimizer.loss_scale = far;
  EXPECT_EQ(run(c), Outcome::done);
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 12U);
  std::int64_t left_out = 0, good = 0;
  double scale = far;
  for (const auto& line : lines) {
    EXPECT_EQ(line["loss_scale"].get<double>(), scale);
    EXPECT_TRUE(line["loss"].is_number());
    ++good;
    if (!line["grad_norm"].is_null()) continue;
    ++left_out;
    good = 0;
    scale /= 2;
  }
  if (world().size() > 1) {
    EXPECT_GE(left_out, 1);
    EXPECT_LE(left_out, 8);
  } else {
    EXPECT_EQ(left_out, 0) << "nothing travels, and float32 gradients do not overflow";
  }
  EXPECT_LT(lines.back()["loss"].get<double>(), lines.front()["loss"].get<double>());
  const auto state =
      checkpoint::read_checkpoint_summary(checkpoint::checkpoint_path(folder_ / "a", 12)).state;
  EXPECT_EQ(state.loss_scale, scale);
  EXPECT_EQ(state.optimizer_steps, 12 - left_out);
  EXPECT_EQ(state.loss_scale_good_steps, good);
  auto resumed = c;
  copy_checkpoint("a", "b", 4);
  resumed.run.dir = (folder_ / "b").string();
  EXPECT_EQ(run(resumed), Outcome::done);
  EXPECT_EQ(curve("b"), curve("a"));
}

TEST_F(Train, RefusesWhatItCannotDoAsAsked) {
  auto c = config("a");
  c.fsdp.strategy = fsdp::Strategy::hybrid_shard;
  EXPECT_THROW(run(c), UserError) << "all ranks are on one node";
  c = config("a");
  c.fsdp.wrap = fsdp::WrapPolicy::modules;
  EXPECT_THROW(run(c), UserError) << "names no modules";
  c.fsdp.wrap_modules = {"NoSuchModule"};
  EXPECT_THROW(run(c), UserError);
  for (const auto& [apply, says] : std::vector<std::pair<void (*)(Config&), const char*>>{
           {[](Config& o) { o.fsdp.offload_step = OffloadStep::host; }, "fsdp.cpu_offload"},
           {[](Config& o) { o.fsdp.shard_group_size = 2; }, "hybrid"},
           {[](Config& o) { o.fsdp.shard_optimizer_over_replicas = true; },
            "needs fsdp.strategy = no_shard or a hybrid"},
           {[](Config& o) {
              o.fsdp.strategy = fsdp::Strategy::no_shard, o.fsdp.cpu_offload = CpuOffload::params;
              o.fsdp.shard_optimizer_over_replicas = true;
            },
            "cannot be combined with fsdp.cpu_offload = params"},
           {[](Config& o) { o.fsdp.wrap_modules = {"LlamaMLP"}; }, "fsdp.wrap = modules"},
           {[](Config& o) {
              o.fsdp.param_dtype = DType::float16, o.optimizer.master_dtype = DType::bfloat16;
            },
            "master_dtype"},
           {[](Config& o) { o.optimizer.gradient_dtype = DType::bfloat16; }, "reduce_dtype"},
           {[](Config& o) { o.optimizer.frozen = "no such parameter"; }, "of frozen matches no"},
           {[](Config& o) { o.optimizer.frozen = "."; }, "of frozen matches every"},
           {[](Config& o) { o.optimizer.lr_factors = "lm_head"; }, "of lr_factors is not"}}) {
    auto wrong = config("a");
    apply(wrong);
    EXPECT_THAT(refusal(wrong), ::testing::HasSubstr(says));
  }
}

}  // namespace
}  // namespace llampi::test
