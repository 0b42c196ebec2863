// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llampi/optim/parameter_groups.hpp"

namespace llampi::test {
namespace {

using namespace optim;

using ::testing::AllOf;
using ::testing::HasSubstr;
using Numbers = std::vector<double>;

std::vector<model::Parameter> parameters() {
  std::vector<model::Parameter> all(4);
  all[0].name = "model.embed_tokens.weight", all[0].shape = {8, 4};
  all[1].name = "model.layers.0.mlp.weight", all[1].shape = {4, 4};
  all[2].name = "model.norm.weight", all[2].shape = {4};
  all[3].name = "lm_head.weight", all[3].shape = {8, 4};
  return all;
}

Numbers decays(const GroupRules& rules) {
  Numbers result;
  for (const auto& group : parameter_groups(parameters(), rules)) result.push_back(group.weight_decay);
  return result;
}

Numbers factors(const std::string& list) {
  Numbers result;
  for (const auto& group : parameter_groups(parameters(), {.lr_factors = list}))
    result.push_back(group.learning_rate_factor);
  return result;
}

std::vector<bool> frozen(const std::string& expression) {
  std::vector<bool> result;
  for (const auto& group : parameter_groups(parameters(), {.frozen = expression}))
    result.push_back(group.frozen);
  return result;
}

std::string refusal(const GroupRules& rules) {
  try {
    parameter_groups(parameters(), rules);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ParameterGroups, MatricesDecayAndVectorsDoNot) {
  EXPECT_EQ(decays({.weight_decay = 0.1}), (Numbers{0.1, 0.1, 0, 0.1}));
}

TEST(ParameterGroups, NoDecayReplacesThatAndMayMatchNothing) {
  EXPECT_EQ(decays({.weight_decay = 0.1, .no_decay = "embed|lm_head"}), (Numbers{0, 0.1, 0.1, 0}));
  EXPECT_THAT(refusal({.weight_decay = 0.1, .no_decay = "bias"}),
              HasSubstr("'bias' of no_decay matches no parameter"));
}

TEST(ParameterGroups, WeightDecaysComeBeforeEverythingElse) {
  const GroupRules rules = {.weight_decay = 0.1, .weight_decays = "norm=0.03 embed=0"};
  EXPECT_EQ(decays(rules), (Numbers{0, 0.1, 0.03, 0.1}));
  EXPECT_EQ(decays({.weight_decay = 0.1, .no_decay = "model", .weight_decays = "mlp=2e-2"}),
            (Numbers{0, 0.02, 0, 0.1}));
}

TEST(ParameterGroups, LearningRateFactorsAreOneUnlessGiven) {
  EXPECT_EQ(factors(""), (Numbers{1, 1, 1, 1}));
  EXPECT_EQ(factors("  "), (Numbers{1, 1, 1, 1}));
  EXPECT_EQ(factors("lm_head=0.25"), (Numbers{1, 1, 1, 0.25}));
  EXPECT_EQ(factors("^model=0"), (Numbers{0, 0, 0, 1}));
}

TEST(ParameterGroups, TheFirstEntryThatMatchesCounts) {
  EXPECT_EQ(factors("mlp=2 model=0.5  weight=3"), (Numbers{0.5, 2, 0.5, 3}));
  EXPECT_EQ(factors("model=0.5 mlp=2 weight=3"), (Numbers{0.5, 0.5, 0.5, 3}));
}

TEST(ParameterGroups, TheLastEqualsSignDivides) {
  EXPECT_EQ(factors("lm(?=_head)=0.5"), (Numbers{1, 1, 1, 0.5}));
  EXPECT_EQ(factors("[=m]lp=0.5"), (Numbers{1, 0.5, 1, 1}));
  EXPECT_THAT(refusal({.lr_factors = "mlp=0.5=2"}), HasSubstr("'mlp=0.5' of lr_factors matches no"));
}

TEST(ParameterGroups, FrozenIsOneExpression) {
  EXPECT_EQ(frozen(""), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(frozen("embed|layers\\.0"), (std::vector<bool>{true, true, false, false}));
}

TEST(ParameterGroups, WhatMatchesNothingIsTheUsersMistake) {
  EXPECT_THAT(refusal({.lr_factors = "lm_head=2 lmhead=2"}),
              AllOf(HasSubstr("'lmhead' of lr_factors"), HasSubstr("matches no parameter")));
  EXPECT_THAT(refusal({.weight_decays = "bias=0.1"}), HasSubstr("'bias' of weight_decays"));
  EXPECT_THAT(refusal({.frozen = "layers.7"}), HasSubstr("'layers.7' of frozen"));
}

TEST(ParameterGroups, MalformedEntriesAreTheUsersMistake) {
  for (const auto* entry : {"lm_head", "=0.5", "0.5"})
    EXPECT_THAT(refusal({.lr_factors = entry}), HasSubstr("is not EXPRESSION=NUMBER")) << entry;
  for (const auto* entry : {"lm_head=", "lm_head=half", "lm_head=0.5x", "lm_head=0,5", "lm_head= 0.5",
                            "lm_head=nan", "lm_head=inf", "lm_head=1e999"})
    EXPECT_THAT(refusal({.weight_decays = entry}), HasSubstr("does not end in a number")) << entry;
  EXPECT_THAT(refusal({.weight_decays = "mlp=0.1 lm_head=-0.5"}),
              AllOf(HasSubstr("'lm_head=-0.5' of weight_decays"), HasSubstr("negative")));
  EXPECT_THAT(refusal({.lr_factors = "lm_head=-1e-9"}), HasSubstr("negative"));
}

TEST(ParameterGroups, MalformedExpressionsAreTheUsersMistake) {
  EXPECT_THAT(refusal({.no_decay = "("}), HasSubstr("'(' of no_decay is not a regular expression"));
  EXPECT_THAT(refusal({.frozen = "["}), HasSubstr("'[' of frozen is not a regular expression"));
  EXPECT_THAT(refusal({.lr_factors = "(=2"}), HasSubstr("'(' of lr_factors is not a regular"));
  EXPECT_THAT(refusal({.weight_decays = "*=2"}), HasSubstr("'*' of weight_decays is not a regular"));
  const std::string deep = std::string(30000, '(') + std::string(30000, ')');
  EXPECT_THAT(refusal({.no_decay = deep}),
              HasSubstr("no_decay has a regular expression of 60000 characters; at most 1000 are allowed"));
}

TEST(ParameterGroups, SomethingMustBeTrained) {
  EXPECT_THAT(refusal({.frozen = "weight"}),
              AllOf(HasSubstr("'weight' of frozen"), HasSubstr("every parameter")));
}

}  // namespace
}  // namespace llampi::test
