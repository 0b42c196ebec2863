#include <gtest/gtest.h>

#include "llampi/optim/parameter_groups.hpp"

namespace llampi {
namespace {

std::vector<Parameter> parameters() {
  std::vector<Parameter> all(3);
  all[0].name = "model.embed_tokens.weight", all[0].shape = {8, 4};
  all[1].name = "model.norm.weight", all[1].shape = {4};
  all[2].name = "lm_head.weight", all[2].shape = {8, 4};
  return all;
}

std::vector<double> decays(const std::string& no_decay) {
  std::vector<double> result;
  for (const auto& group : parameter_groups(parameters(), 0.1, no_decay))
    result.push_back(group.weight_decay);
  return result;
}

TEST(ParameterGroups, MatricesDecayAndVectorsDoNot) {
  EXPECT_EQ(decays(""), (std::vector<double>{0.1, 0, 0.1}));
}

TEST(ParameterGroups, AnExpressionReplacesTheDefault) {
  EXPECT_EQ(decays("embed|lm_head"), (std::vector<double>{0, 0.1, 0}));
}

TEST(ParameterGroups, AMalformedExpressionIsTheUsersMistake) {
  EXPECT_THROW(parameter_groups(parameters(), 0.1, "("), UserError);
}

}  // namespace
}  // namespace llampi
