// SPDX-License-Identifier: Apache-2.0
// Where the data go on, and which models compute alike.
#include "train/resume.hpp"
#include "train/same_model.hpp"

#include <gtest/gtest.h>

#include "llampi/core/error.hpp"

namespace llampi::test {
namespace {

using namespace train;

/// 100 samples of 16 tokens after `step` steps of 12, 8 in an epoch and 4 samples left over.
checkpoint::TrainingState saved_at(std::int64_t step) {
  return {.step = step,
          .optimizer_steps = step - 1,
          .tokens_seen = 1000 * step,
          .samples_consumed = 12 * step,
          .epoch = step / 8,
          .seed = 3,
          .seq_len = 16,
          .global_batch = 12,
          .data_tokens = 1601};
}

checkpoint::TrainingState fresh(std::int64_t seq_len, std::int64_t global_batch) {
  return {.seed = 3, .seq_len = seq_len, .global_batch = global_batch, .data_tokens = 1601};
}

TEST(ContinueFrom, WithoutChangesTheDataGoOnWithTheStep) {
  for (std::int64_t step = 0; step < 40; ++step) {
    const auto state = continue_from(saved_at(step), fresh(16, 12));
    EXPECT_EQ(state.step, step);
    EXPECT_EQ(state.optimizer_steps, step - 1);
    EXPECT_EQ(state.tokens_seen, 1000 * step);
    EXPECT_EQ(state.samples_consumed, 12 * step);
    EXPECT_EQ(data_steps(state), step);
    EXPECT_EQ(state.epoch, step / 8);
  }
}

TEST(ContinueFrom, AnotherBatchGoesOnAtTheNextWholeOneOfTheEpoch) {
  // 2 epochs and 3 steps: 36 samples. Batches of 20 are 5 in an epoch; two hold 36.
  const auto state = continue_from(saved_at(19), fresh(16, 20));
  EXPECT_EQ(state.step, 19);
  EXPECT_EQ(state.epoch, 2);
  EXPECT_EQ(data_steps(state), 2 * 5 + 2);
  EXPECT_EQ(state.samples_consumed, (2 * 5 + 2) * 20);
  EXPECT_EQ(continue_from(state, fresh(16, 20)).samples_consumed, state.samples_consumed);
}

TEST(ContinueFrom, AnotherLengthGoesOnAfterAsManyTokens) {
  // 36 samples of 16 tokens are 72 of 8: 6 batches of 12. An epoch is now 200 samples, 16 batches.
  EXPECT_EQ(data_steps(continue_from(saved_at(19), fresh(8, 12))), 2 * 16 + 6);
  // And 18 of 32, so two batches; an epoch is 50 samples, 4 batches.
  EXPECT_EQ(data_steps(continue_from(saved_at(19), fresh(32, 12))), 2 * 4 + 2);
}

TEST(ContinueFrom, ThePositionStaysInTheEpoch) {
  // After 7 steps 84 samples; of the one batch of 60 in an epoch nothing is left.
  const auto state = continue_from(saved_at(7), fresh(16, 60));
  EXPECT_EQ(data_steps(state), 1);
  EXPECT_EQ(state.epoch, 1);
}

TEST(TotalSteps, EpochsCountFromThePlaceInTheData) {
  Config config;
  config.train.epochs = 2.5;
  EXPECT_EQ(total_steps(config, saved_at(0)), 20);
  EXPECT_EQ(total_steps(config, saved_at(11)), 20);
  // 11 steps done; of the epoch of 5 steps of 20, 2 for the 36 samples seen: 12.5 - 7 are left, rounded up.
  EXPECT_EQ(total_steps(config, continue_from(saved_at(11), fresh(16, 20))), 11 + 13 - 7);
  config.train.steps = 30;
  EXPECT_EQ(total_steps(config, continue_from(saved_at(11), fresh(16, 20))), 30);
}

TEST(CheckSameModel, NamesTheFieldThatDiffers) {
  model::LlamaConfig model;
  model.vocab_size = 61;
  model.hidden_size = 24;
  model.intermediate_size = 40;
  model.layers = 2;
  model.query_heads = 3;
  model.key_value_heads = 1;
  model.head_dim = 8;
  const auto problem = [&](auto change) -> std::string {
    model::LlamaConfig other = model;
    change(other);
    try {
      check_same_model(model, "here", other, "there", "look");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.max_position_embeddings = 128; }), "") << "only a limit";
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.initializer_range = 1; }), "");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.windows = {0, 0}; }), "") << "no layer has one";
  EXPECT_EQ(problem([](model::LlamaConfig& c) {
              c.windows = {0, 8};
            }),
            "here has sliding_window = none, but there has 8 in layer 1; look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) {
              c.windows = {8, 8};
            }),
            "here has sliding_window = none, but there has 8 in layers 0-1; look");
  for (const auto& family : model::architectures()) {
    const auto text = problem([&](model::LlamaConfig& c) { c.architecture = &family; });
    EXPECT_EQ(text,
              family.qkv_bias || family.qk_norms
                  ? fmt::format("here has model_type = llama, but there has {}; look", family.model_type)
                  : "");
  }
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.vocab_size = 62; }),
            "here has vocab_size = 61, but there has 62; look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.hidden_size = 48; }),
            "here has hidden_size = 24, but there has 48; look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.intermediate_size = 41; }),
            "here has intermediate_size = 40, but there has 41; look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.layers = 3; }),
            "here has num_hidden_layers = 2, but there has 3; look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.query_heads = 6; }),
            "here has num_attention_heads = 3, but there has 6; look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.key_value_heads = 3; }),
            "here has num_key_value_heads = 1, but there has 3; look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.head_dim = 4; }),
            "here has head_dim = 8, but there has 4; look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.rms_norm_eps = 1e-5; }),
            "here has rms_norm_eps = 1e-06, but there has 1e-05; look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.rope_theta = 5e5; }),
            "here has rope_theta = 10000, but there has 500000; look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.rope_scaling = model::Llama3Rope{}; }),
            "here has rope_scaling = none, but there has llama3 (factor 8, low_freq_factor 1, "
            "high_freq_factor 4, original length 8192); look");
  EXPECT_EQ(problem([](model::LlamaConfig& c) { c.tie_word_embeddings = true; }),
            "here has tie_word_embeddings = false, but there has true; look");
}

}  // namespace
}  // namespace llampi::test
