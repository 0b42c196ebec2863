// SPDX-License-Identifier: Apache-2.0
// Numbers that are not finite: where they are found, and what is done.
#include <gmock/gmock.h>

#include <limits>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/data/loader.hpp"
#include "llampi/model/llama.hpp"
#include "ranks/train/run_fixture.hpp"
#include "train/not_finite.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::MatchesRegex;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kSeqLen = 8;

/// Of one layer, whose backward pass writes a number that is not finite into its first gradient, on one rank.
class BadLayer final : public model::Layer {
 public:
  BadLayer(const model::Layer& inner, bool bad) : inner_(inner), bad_(bad) {}
  model::LayerSpec spec(model::BatchShape batch, DType compute,
                        const device::OperationSizes& sizes) const override {
    return inner_.spec(batch, compute, sizes);
  }
  void forward(model::LayerContext& context) const override { inner_.forward(context); }
  void backward(model::LayerContext& context) const override {
    inner_.backward(context);
    if (bad_) context.parameter_gradients[0].as<float>()[0] = kNaN;
  }

 private:
  const model::Layer& inner_;
  bool bad_;
};

/// A Llama of which the layers `bad` write bad gradients.
class BadModel final : public model::Model {
 public:
  BadModel(std::unique_ptr<model::Model> inner, const std::vector<std::size_t>& bad)
      : inner_(std::move(inner)) {
    for (std::size_t s = 0; s < inner_->layers().size(); ++s) {
      layers_.push_back(
          std::make_unique<BadLayer>(*inner_->layers()[s], std::count(bad.begin(), bad.end(), s) > 0));
    }
  }
  const std::vector<model::Module>& modules() const override { return inner_->modules(); }
  const std::vector<model::Parameter>& parameters() const override { return inner_->parameters(); }
  const std::vector<std::unique_ptr<model::Layer>>& layers() const override { return layers_; }
  std::vector<model::BufferSpec> constants(std::int64_t seq_len, DType compute) const override {
    return inner_->constants(seq_len, compute);
  }
  void fill_constant(int index, const model::BufferSpec& spec, void* data) const override {
    inner_->fill_constant(index, spec, data);
  }
  std::string block_type() const override { return inner_->block_type(); }
  std::int64_t vocabulary() const override { return inner_->vocabulary(); }

 private:
  std::unique_ptr<model::Model> inner_;
  std::vector<std::unique_ptr<model::Layer>> layers_;
};

/// The engine of a small Llama, and steps of it.
class NotFinite : public Train {
 protected:
  fsdp::EngineOptions options(const model::Model& model) const {
    fsdp::EngineOptions options;
    options.batch = {1, kSeqLen};
    options.wrap.policy = fsdp::WrapPolicy::transformer;
    options.parameter_groups.resize(model.parameters().size());
    options.clip_grad_norm = 1;
    return options;
  }
  fsdp::StepResult step(fsdp::Engine& engine) const {
    const data::TokenFile file(folder_ / "tokens.h5");
    const std::vector<std::int64_t> samples = {world().rank()};
    const device::HostBatch batch =
        data::make_batch(file, {.seq_len = kSeqLen, .micro_batch = 1, .vocabulary = 61}, samples);
    std::int64_t valid = batch.valid_labels;
    world().sum(std::span(&valid, 1));
    return engine.step({&batch, 1}, {1e-3, 1, valid});
  }
  std::unique_ptr<model::Model> model() const { return model::make_llama(model::LlamaConfig::read(folder_)); }
};

/// The rank that holds element `element` of a parameter, and its value there.
struct Element {
  int rank = -1;
  float* value = nullptr;  ///< on that rank
};

Element find(fsdp::Engine& engine, const std::string& name, std::int64_t element) {
  Element result;
  for (const auto& piece : engine.pieces_to_load()) {
    const std::int64_t at = element - piece.begin;
    if (engine.model().parameters()[static_cast<std::size_t>(piece.parameter)].name != name || at < 0 ||
        at >= piece.master.elements())
      continue;
    result = {test_world().rank(), piece.master.as<float>() + at};
  }
  std::int64_t rank = result.rank;
  test_world().max(std::span(&rank, 1));
  result.rank = static_cast<int>(rank);
  return result;
}

std::string on_rank(int rank) { return fmt::format("rank {} on {}", rank, test_world().topology().host); }

TEST_F(NotFinite, ABadParameterIsNamed) {
  const auto device = device::make_cpu_device(1);
  const auto llama = model();
  for (const std::int64_t at : {0, 959}) {  // of the first rank that has some of it, of the last
    fsdp::Engine engine(*llama, *device, world(), options(*llama));
    engine.initialise(1);
    const auto element = find(engine, "model.layers.1.mlp.down_proj.weight", at);
    if (element.value != nullptr) *element.value = kNaN;
    const auto result = step(engine);
    EXPECT_FALSE(std::isfinite(result.grad_norm));
    EXPECT_EQ(
        find_not_finite(world(), *device, engine, result.loss_sum).where,
        fmt::format("the parameter model.layers.1.mlp.down_proj.weight of unit model.layers.1 is not finite "
                    "itself, at element {}, which {} holds",
                    at, on_rank(element.rank)));
  }
}

TEST_F(NotFinite, TheFirstUnitWithABadGradientIsNamedAndWhoHoldsIt) {
  const auto device = device::make_cpu_device(1);
  // Layers: embedding, attention 0, MLP 0, attention 1, MLP 1, loss. Of rank 0's gradients only.
  for (const auto& offload : {fsdp::Offload{}, fsdp::Offload{.optimizer = true}}) {
    const BadModel bad(model(),
                       world().rank() == 0 ? std::vector<std::size_t>{3, 5} : std::vector<std::size_t>{});
    auto with = options(bad);
    with.offload = offload;
    fsdp::Engine engine(bad, *device, world(), with);
    engine.initialise(1);
    const int holder = find(engine, "model.layers.1.input_layernorm.weight", 0).rank;
    const auto result = step(engine);
    EXPECT_FALSE(std::isfinite(result.grad_norm));
    EXPECT_TRUE(std::isfinite(result.loss_sum));
    EXPECT_EQ(
        find_not_finite(world(), *device, engine, result.loss_sum).where,
        "the loss of every rank is finite, the first unit with a gradient that is not finite is model.layers.1, "
        "in the shard of " +
            on_rank(holder));
  }
}

TEST_F(NotFinite, TheRankWhoseLossIsNotFiniteIsNamed) {
  const auto device = device::make_cpu_device(1);
  const auto llama = model();
  fsdp::Engine engine(*llama, *device, world(), options(*llama));
  engine.initialise(1);
  step(engine);
  const int last = world().size() - 1;
  EXPECT_EQ(find_not_finite(world(), *device, engine,
                            world().rank() == last ? std::numeric_limits<double>::infinity() : 1.0)
                .where,
            "the loss is not finite on " + on_rank(last) + ", all gradients are finite");
}

// No step mends them, so none is waited for.
TEST_F(NotFinite, ABadParameterEndsTheRunWhateverMayBeSkipped) {
  const NotFinitePolicy policy{.skip = 100};
  const Log log;
  NotFiniteSteps steps(policy, log);
  const StepMetrics metrics{.step = 7, .grad_norm = kNaN};
  EXPECT_FALSE(steps.state_is_usable()) << "of which nothing is known";
  steps.finite();
  EXPECT_TRUE(steps.state_is_usable());
  EXPECT_FALSE(steps.not_finite(metrics, {.in_parameters = false, .where = "elsewhere"}).has_value());
  EXPECT_EQ(steps.in_a_row(), 1);
  EXPECT_FALSE(steps.state_is_usable());
  EXPECT_EQ(steps.not_finite(metrics, {.in_parameters = true, .where = "there"}),
            "the loss or the gradient is not finite at step 7: there");
  steps.finite();
  EXPECT_EQ(steps.in_a_row(), 0);
  EXPECT_TRUE(steps.state_is_usable());
}

class Overflow : public Train {
 protected:
  /// A learning rate with which the first update makes weights whose squares are out of float32's range, or they themselves.
  Config diverging(const std::string& run, NotFinitePolicy policy, double lr = 1e30) const {
    auto c = config(run);
    c.optimizer.lr = lr;
    c.optimizer.warmup_steps = 0;
    c.train.not_finite = policy;
    return c;
  }
  std::string failure(const Config& c, const Log& log = Log()) const {
    try {
      run(c, log);
    } catch (const comm::CommonError& error) {
      return error.what();
    }
    return "no failure";
  }
};

TEST_F(Overflow, EndsTheRun) {
  for (const auto strategy :
       {fsdp::Strategy::full_shard, fsdp::Strategy::shard_grad_op, fsdp::Strategy::no_shard}) {
    auto c = diverging(fsdp::to_string(strategy), {});
    c.fsdp.strategy = strategy;
    c.log.trace = {1, 9};
    EXPECT_THAT(
        failure(c),
        MatchesRegex(
            "the loss or the gradient is not finite at step [23]: the .*; there is no checkpoint yet"))
        << fsdp::to_string(strategy);
    EXPECT_TRUE(fs::exists(fs::path(c.run.dir) / "trace" / fmt::format("rank-{:05}.json", world().rank())));
  }
}

TEST_F(Overflow, LeavesStepsOutWhileItMay) {
  for (const auto strategy : {fsdp::Strategy::full_shard, fsdp::Strategy::no_shard}) {
    auto c = diverging(fsdp::to_string(strategy), {.skip = 2});
    c.fsdp.strategy = strategy;
    const auto message = failure(c, keeping_log());
    EXPECT_THAT(message, MatchesRegex("the loss or the gradient is not finite at step [45]: .*"))
        << fsdp::to_string(strategy);
    EXPECT_TRUE(logged("1 in a row, 1 so far")) << fsdp::to_string(strategy);
    EXPECT_TRUE(logged("2 in a row, 2 so far")) << fsdp::to_string(strategy);
    EXPECT_FALSE(world().rank() == 0 && logged("3 in a row")) << fsdp::to_string(strategy);
  }
}

TEST_F(Overflow, OfParametersEndsTheRunWhateverMayBeSkipped) {
  EXPECT_THAT(failure(diverging("parameters", {.skip = 100}, 1e38)),
              MatchesRegex("the loss or the gradient is not finite at step 2: the parameter .*"));
}

// The next job knows nothing of how the last one ended, and steps without labels do not tell.
TEST_F(Overflow, StepsWithoutLabelsReplaceNoCheckpoint) {
  write_singles();
  auto c = diverging("continued", {.skip = 100});
  c.checkpoint.keep = 1;
  run(c);
  const auto before = checkpoint::list_checkpoints(c.run.dir);
  c.data.train = (folder_ / "singles.h5").string();
  c.run.resume_with_changes = true;
  c.train.steps = 14;
  c.checkpoint.every = 1;
  run(c);
  auto expected = before;
  for (const int step : {13, 14}) expected.push_back(checkpoint::checkpoint_path(c.run.dir, step));
  EXPECT_EQ(checkpoint::list_checkpoints(c.run.dir), expected);
}

// Else three of them would have replaced all that can be gone back to.
TEST_F(Overflow, SavesNothingWhileStepsAreNotFinite) {
  std::vector<std::string> saved[2];
  for (const int keep : {100, 1}) {
    auto c = diverging(fmt::format("saved-{}", keep), {.skip = 100});
    c.checkpoint.every = 1;
    c.checkpoint.keep = keep;
    run(c, keeping_log());
    if (world().rank() != 0) continue;
    for (const auto& path : checkpoint::list_checkpoints(c.run.dir)) saved[keep == 1].push_back(path.stem());
    EXPECT_TRUE(logged("the checkpoint of step 12 may be unusable: the last "));
  }
  if (world().rank() != 0) return;
  const auto& all = saved[0];
  ASSERT_GE(all.size(), 2U);
  EXPECT_LE(all.size(), 4U) << "of the steps that were finite, and of the last one";
  EXPECT_EQ(all.back(), "step-00000012");
  // The last one, which may be of no use, does not replace the one before.
  EXPECT_EQ(saved[1], std::vector(all.end() - 2, all.end()));
}

}  // namespace
}  // namespace llampi::test
