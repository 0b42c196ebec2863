// SPDX-License-Identifier: Apache-2.0
// Runs with products in 8 bits: state and files have none, so runs stop, go on and change recipes as all others do.
#include <gmock/gmock.h>

#include "ranks/train/run_fixture.hpp"

namespace llampi::test {
namespace {

using namespace train;

class Fp8Train : public Train {
 protected:
  Fp8Train() {
    if (world().rank() == 0) {
      fs::create_directories(folder_ / "sixteens");
      std::ofstream(folder_ / "sixteens" / "config.json")
          << R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 61, "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 64})";
    }
    world().barrier();
  }

  Config fp8(const std::string& run) const {
    Config c = config(run);
    c.model.config = (folder_ / "sixteens").string();
    c.fsdp.product_dtype = ProductDtype::fp8;
    return c;
  }
};

TEST_F(Fp8Train, LearnsAndCountsItsCasts) {
  auto c = fp8("a");
  c.data.eval = (folder_ / "eval.h5").string();
  c.train.eval_every = 6;
  EXPECT_EQ(run(c), Outcome::done);
  const auto lines = metrics("a");
  EXPECT_LT(lines.at(11)["loss"].get<double>(), lines.front()["loss"].get<double>());
  int evaluations = 0;
  for (const auto& line : lines) {
    if (line.contains("eval_loss")) {
      ++evaluations;
      EXPECT_TRUE(line["eval_loss"].is_number());
      continue;
    }
    EXPECT_EQ(line["fp8_saturated"], 0);
    EXPECT_EQ(line["fp8_zero_scale"], 0);
  }
  EXPECT_EQ(evaluations, 2);
  auto without = fp8("b");
  without.fsdp.product_dtype = ProductDtype::automatic;
  run(without);
  EXPECT_FALSE(metrics("b").front().contains("fp8_saturated"));
  EXPECT_NE(metrics("b").back()["loss"], lines.at(11)["loss"]);
}

TEST_F(Fp8Train, ContinuesWithEqualBits) {
  for (const bool async : {false, true}) {
    const auto whole_name = fmt::format("whole-{}", async), name = fmt::format("resumed-{}", async);
    auto whole = fp8(whole_name);
    whole.checkpoint.async = async;
    whole.fsdp.param_dtype = DType::bfloat16;
    EXPECT_EQ(run(whole), Outcome::done);
    expect_equal_bits_from_step_8(whole, whole_name, name);
  }
  EXPECT_EQ(tensors("whole-true", 12), tensors("whole-false", 12));
}

TEST_F(Fp8Train, ChangesToTheOtherRecipeAtAnyCheckpoint) {
  for (const auto first : {ProductDtype::automatic, ProductDtype::fp8}) {
    const auto second = first == ProductDtype::fp8 ? ProductDtype::automatic : ProductDtype::fp8;
    const std::string from = "from-" + std::string(word_of(first)), to = "to-" + std::string(word_of(second));
    auto before = fp8(from);
    before.fsdp.product_dtype = first;
    run(before);
    copy_checkpoint(from, to, 8);
    auto after = before;
    after.run.dir = (folder_ / to).string();
    after.fsdp.product_dtype = second;
    EXPECT_EQ(run(after), Outcome::done);
    const auto lines = metrics(to), others = metrics(from);
    ASSERT_EQ(lines.size(), 12U);
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(lines[i].contains("fp8_saturated"), (i < 8 ? first : second) == ProductDtype::fp8) << i;
      EXPECT_NEAR(lines[i]["loss"].get<double>(), others[i]["loss"].get<double>(), 0.05) << i;
    }
    EXPECT_NE(tensors(to, 12), tensors(from, 12));
    const auto shape = [&](const std::string& run) {
      std::vector<std::string> text;
      for (const auto& t :
           checkpoint::read_checkpoint_summary(checkpoint::checkpoint_path(folder_ / run, 12)).tensors)
        text.push_back(fmt::format("{} {} {}", t.name, t.shape.size(), t.optimizer));
      return text;
    };
    EXPECT_EQ(shape(to), shape(from));
  }
}

/// Then a unit begins with its weights in 8 bits, which are read where they are kept if nothing is sharded.
TEST_F(Fp8Train, TrainsMatricesAloneWhetherTheyAreShardedOrNot) {
  for (const auto strategy : {fsdp::Strategy::full_shard, fsdp::Strategy::no_shard}) {
    auto c = fp8(fsdp::to_string(strategy));
    c.fsdp.param_dtype = DType::bfloat16;
    c.optimizer.frozen = "norm";
    c.fsdp.strategy = strategy;
    EXPECT_EQ(run(c), Outcome::done);
  }
  EXPECT_EQ(curve("full_shard"), curve("no_shard"));
}

TEST_F(Fp8Train, RefusesWhatHasNoProductsIn8Bits) {
  for (const auto& [apply, says] : std::vector<std::pair<std::function<void(Config&)>, const char*>>{
           {[](Config& c) { c.fsdp.param_dtype = DType::float16; }, "fsdp.param_dtype = float16"},
           {[](Config& c) { c.fsdp.cpu_offload = CpuOffload::params; }, "cpu_offload = params"},
           {[](Config& c) { c.data.seq_len = 20; }, "multiple of 16 tokens"},
           {[this](Config& c) { c.model.config = (folder_ / "config.json").string(); },
            "hidden_size is 24"}}) {
    auto wrong = fp8("a");
    apply(wrong);
    EXPECT_THAT(refusal(wrong), ::testing::HasSubstr(says));
  }
}

}  // namespace
}  // namespace llampi::test
