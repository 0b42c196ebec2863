// SPDX-License-Identifier: Apache-2.0
// Replicas that are not equal: found, and named.
#include <gmock/gmock.h>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/model/llama.hpp"
#include "ranks/train/run_fixture.hpp"
#include "train/replicas.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::AllOf;
using ::testing::HasSubstr;

class Replicas : public Train {
 protected:
  fsdp::EngineOptions options(const model::Model& model, fsdp::Strategy strategy) const {
    fsdp::EngineOptions options;
    options.batch = {1, 8};
    options.strategy = strategy;
    options.shard_group_size = 2;
    options.wrap.policy = fsdp::WrapPolicy::transformer;
    options.parameter_groups.resize(model.parameters().size());
    return options;
  }
  std::unique_ptr<model::Model> model() const { return model::make_llama(model::LlamaConfig::read(folder_)); }
};

/// Changes the last bit of the first element that this rank has of a parameter's second moment.
void flip_a_bit(fsdp::Engine& engine, const std::string& name) {
  for (const auto& piece : engine.pieces_to_load()) {
    if (engine.model().parameters()[static_cast<std::size_t>(piece.parameter)].name != name) continue;
    auto* value = static_cast<unsigned char*>(piece.exp_avg_sq.data);
    *value = static_cast<unsigned char>(*value ^ 1U);
    return;
  }
  FAIL() << "this rank holds nothing of " << name;
}

TEST_F(Replicas, NoneDiffersAfterTheStart) {
  const auto device = device::make_cpu_device(1);
  const auto llama = model();
  for (const auto strategy : {fsdp::Strategy::no_shard, fsdp::Strategy::full_shard}) {
    for (const bool in_parts : {false, true}) {
      auto chosen = options(*llama, strategy);
      chosen.shard_optimizer_over_replicas = in_parts;
      fsdp::Engine engine(*llama, *device, world(), chosen);
      engine.initialise(1);
      EXPECT_EQ(find_differing_replicas(world(), *device, engine), "");
    }
  }
}

TEST_F(Replicas, OneOfThreeOrMoreIsNamed) {
  if (world().size() < 3) GTEST_SKIP() << "two ranks cannot tell which of them is right";
  const auto device = device::make_cpu_device(1);
  const auto llama = model();
  fsdp::Engine engine(*llama, *device, world(), options(*llama, fsdp::Strategy::no_shard));
  engine.initialise(1);
  if (world().rank() == 1) flip_a_bit(engine, "model.layers.1.mlp.down_proj.weight");
  const std::string text = find_differing_replicas(world(), *device, engine);
  EXPECT_EQ(text, fmt::format("rank 1 on {} differs from other replicas of the shard, first in "
                              "model.layers.1.mlp.down_proj.weight (unit model.layers.1)",
                              world().topology().host));
}

// Of the optimizer state each has its own part: it is the parameters that are compared.
TEST_F(Replicas, OneIsNamedWhereTheyDivideTheOptimizerState) {
  if (world().size() < 3) GTEST_SKIP() << "two ranks cannot tell which of them is right";
  const auto device = device::make_cpu_device(1);
  const auto llama = model();
  auto chosen = options(*llama, fsdp::Strategy::no_shard);
  chosen.shard_optimizer_over_replicas = true;
  fsdp::Engine engine(*llama, *device, world(), chosen);
  engine.initialise(1);
  const auto held = engine.pieces_held();
  if (world().rank() == 2) *static_cast<unsigned char*>(held.front().master.data) ^= 1U;
  EXPECT_THAT(find_differing_replicas(world(), *device, engine),
              AllOf(HasSubstr("rank 2 on "), HasSubstr("first in model.embed_tokens.weight")));
}

TEST_F(Replicas, TwoThatDifferAreBothNamed) {
  if (world().size() != 4) GTEST_SKIP() << "two shards with two replicas each need four ranks";
  const auto device = device::make_cpu_device(1);
  const auto llama = model();
  fsdp::Engine engine(*llama, *device, world(), options(*llama, fsdp::Strategy::hybrid_shard));
  engine.initialise(1);
  EXPECT_EQ(find_differing_replicas(world(), *device, engine), "");
  if (world().rank() == 3) flip_a_bit(engine, "lm_head.weight");
  EXPECT_THAT(find_differing_replicas(world(), *device, engine),
              AllOf(HasSubstr("rank 1 on "), HasSubstr(", rank 3 on "), HasSubstr("differ from"),
                    HasSubstr("lm_head.weight")));
}

// Comparing changes nothing.
TEST_F(Replicas, ARunThatComparesIsTheSameRun) {
  auto plain = config("plain");
  plain.fsdp.strategy = fsdp::Strategy::no_shard;
  auto compared = plain;
  compared.run.dir = (folder_ / "compared").string();
  compared.run.verify_replicas_every = 2;
  run(plain);
  run(compared);
  world().barrier();
  EXPECT_EQ(curve("plain"), curve("compared"));
  EXPECT_TRUE(tensors("plain", 12) == tensors("compared", 12));
}

// A seed of its own gives a rank other weights, as a fault would.
TEST_F(Replicas, ARunWithADifferentOneEndsBeforeItIsSaved) {
  if (world().size() < 3) GTEST_SKIP() << "two ranks cannot tell which of them is right";
  for (const auto& [every, step] : {std::pair(2, 2), {100, 4}}) {  // 4: the first save
    auto c = config("differs");
    c.fsdp.strategy = fsdp::Strategy::no_shard;
    c.run.verify_replicas_every = every;
    c.run.seed = world().rank() == 1 ? 1 : 0;
    std::string message = "it did not end";
    try {
      run(c);
    } catch (const comm::CommonError& error) {  // on every rank, so that one may print it
      message = error.what();
    }
    EXPECT_THAT(message, AllOf(HasSubstr(fmt::format("after step {}, rank 1 on ", step)),
                               HasSubstr("differs from"), HasSubstr("; there is no checkpoint yet")));
    EXPECT_TRUE(checkpoint::list_checkpoints(c.run.dir).empty());
    world().barrier();
  }
}

}  // namespace
}  // namespace llampi::test
