// SPDX-License-Identifier: Apache-2.0
// How members of the configuration are written that are neither numbers nor words alone, and the tables of
// words.
#include "cli/config_values.hpp"

#include <gtest/gtest.h>

#include "cli/keys.hpp"
#include "cli/option_table.hpp"
#include "cli/options.hpp"
#include "llampi/core/config_error.hpp"
#include "unit/cli/expect_user_error.hpp"

namespace llampi::test {
namespace {

using namespace cli;

/// Each text gives itself back.
void expect_round_trips(const Spelled& spelled, const std::vector<std::string>& texts) {
  for (const auto& text : texts) {
    EXPECT_TRUE(spelled.read(text)) << text;
    EXPECT_EQ(spelled.write(), text);
  }
}

/// None is taken, and the value stays.
void expect_refused(const Spelled& spelled, const std::vector<std::string>& texts) {
  const std::string before = spelled.write();
  for (const auto& text : texts) EXPECT_FALSE(spelled.read(text)) << text;
  EXPECT_EQ(spelled.write(), before);
  EXPECT_NE(spelled.advice, "");
}

TEST(ConfigValues, ReadWhatARunContinuesFrom) {
  train::ResumeFrom resume;
  expect_round_trips(spelled_resume(resume), {"never", "a/step-00000004.h5", "auto"});
  EXPECT_EQ(resume, train::ResumeFrom{});
  spelled_resume(resume).read("a.h5");
  EXPECT_EQ(resume, (train::ResumeFrom{train::ResumeFrom::Mode::file, "a.h5"}));
}

TEST(ConfigValues, ReadWeights) {
  std::optional<std::string> weights;
  expect_round_trips(spelled_weights(weights), {"hf", "random"});
  EXPECT_EQ(weights, std::nullopt);
}

TEST(ConfigValues, ReadNotFinitePolicies) {
  train::NotFinitePolicy policy;
  expect_round_trips(spelled_not_finite(policy), {"stop", "skip 12"});
  EXPECT_EQ(policy.skip, 12);
  expect_refused(spelled_not_finite(policy), {"", "skip", "skip 0", "skip -1", "skip 3 times", "go"});
}

TEST(ConfigValues, ReadSizesOfShardGroups) {
  std::optional<int> size;
  expect_round_trips(spelled_group_size(size), {"4", "node"});
  expect_refused(spelled_group_size(size), {"0", "-1", "2.5", "two", "99999999999"});
  size = 2;
  EXPECT_TRUE(spelled_group_size(size).read(""));
  EXPECT_EQ(size, std::nullopt);
}

TEST(ConfigValues, ReadStepsToTrace) {
  std::optional<train::StepRange> steps;
  expect_round_trips(spelled_steps(steps), {"3", "3-5", ""});
  spelled_steps(steps).read("3-5");
  EXPECT_EQ(steps, (train::StepRange{3, 5}));
  expect_refused(spelled_steps(steps), {"x", "4-2", "-3", "1-", "0-2", "3-5-7"});
  EXPECT_TRUE(spelled_steps(steps).read("0"));
  EXPECT_EQ(steps, std::nullopt);
}

TEST(ConfigValues, ReadLists) {
  std::vector<std::string> list;
  expect_round_trips(spelled_list(list), {"LlamaAttention \\.mlp$", "a", ""});
  spelled_list(list).read("  a   b ");
  EXPECT_EQ(list, (std::vector<std::string>{"a", "b"}));
}

TEST(ConfigValues, AreRefusedInOneSentence) {
  train::Config config;
  const auto table = option_table(config);
  const auto refuses = [&](const std::string& key, const std::string& value, const std::string& advice) {
    expect_user_error(
        [&] {
          assign(*find_option(table, key), {key, value, "f.ini"});
        },
        fmt::format("{} = {} (f.ini) is not known; {}", key, value, advice));
  };
  refuses("train.not_finite", "go", "use stop, or skip and a number of steps, as in skip 3");
  refuses("fsdp.shard_group_size", "two", "use node or a number of ranks");
  refuses("log.trace", "4-2", "use a step or a range of steps such as 3-5");
  refuses("fsdp.param_dtype", "flaot16", "use auto, float32, bfloat16 or float16");
  refuses("optimizer.master_dtype", "float16", "use float32 or bfloat16");
  refuses("fsdp.sync_init", "each", "use read or broadcast");
}

// Nothing falls through to a default: each word sets its own value and comes back as it is.
TEST(ConfigValues, EveryWordOfEveryKeyGivesItselfBack) {
  train::Config config;
  for (const auto& option : option_table(config)) {
    const auto* spelled = std::get_if<Spelled>(&option.target);
    if (spelled == nullptr) continue;
    for (const auto& word : spelled->words) {
      assign(option, {option.key, word, ""});
      EXPECT_EQ(value_text(option), word) << option.key;
    }
  }
}

// Each name that a lower part has for an option is a key of the program.
TEST(Keys, AreThoseOfTheTable) {
  train::Config config;
  const auto table = option_table(config);
  for (const auto* field : {"device",
                            "folder",
                            "graph",
                            "share_gpu",
                            "moments_may_be_missing",
                            "model",
                            "weights",
                            "batch.seq_len",
                            "batch.sequences",
                            "global_batch",
                            "no_decay",
                            "weight_decays",
                            "lr_factors",
                            "frozen",
                            "precision.frozen",
                            "precision.master",
                            "precision.moment",
                            "precision.gradient_shard",
                            "precision.reduce",
                            "strategy",
                            "shard_group_size",
                            "wrap.policy",
                            "wrap.modules",
                            "wrap.min_params",
                            "offload",
                            "checkpointing"}) {
    EXPECT_NE(find_option(table, key_of(field)), nullptr) << field;
  }
  EXPECT_EQ(key_of("something else"), "something else");
}

TEST(Keys, AreWhatUsersRead) {
  const ConfigError error({.field = "wrap.modules",
                           .entry = "Mlp",
                           .problem = "matches nothing",
                           .remedy = "use {wrap.policy} = size"});
  EXPECT_EQ(sentence_of(error), "'Mlp' of fsdp.wrap_modules matches nothing; use fsdp.wrap = size");
}

}  // namespace
}  // namespace llampi::test
