// SPDX-License-Identifier: Apache-2.0
// The same rules mean the same to this program and to the script that trained the fixture with PyTorch.
#include <gtest/gtest.h>

#include <algorithm>

#include "llampi/optim/parameter_groups.hpp"
#include "support/oracle.hpp"

namespace llampi::test {
namespace {

using namespace optim;

TEST(OracleGroups, FrozenIsWhatHasNoGradientAndDoesNotMove) {
  const auto fixture = oracle::load("groups_frozen");
  const auto model = model::make_llama(fixture.config);
  const auto groups = parameter_groups(model->parameters(), fixture.rules);
  ASSERT_EQ(groups.size(), fixture.final_parameters.size());
  std::size_t trained = 0;
  for (std::size_t p = 0; p < groups.size(); ++p) {
    const auto& name = model->parameters()[p].name;
    const auto& before = fixture.initial.parameters.at(name);
    const auto& after = fixture.final_parameters.at(name);
    EXPECT_EQ(groups[p].frozen, !fixture.initial.gradients.contains(name)) << name;
    EXPECT_EQ(groups[p].frozen, before.dot == after.dot) << name;
    trained += groups[p].frozen ? 0 : 1;
  }
  EXPECT_EQ(trained, fixture.initial.gradients.size());
}

TEST(OracleGroups, NumbersGoWhereTheCaseWantsThem) {
  const auto fixture = oracle::load("groups_frozen");
  const auto model = model::make_llama(fixture.config);
  const auto groups = parameter_groups(model->parameters(), fixture.rules);
  for (std::size_t p = 0; p < groups.size(); ++p) {
    const auto& name = model->parameters()[p].name;
    const bool vector = model->parameters()[p].shape.size() == 1;
    const double decay = name.starts_with("model.layers.1.mlp.") ? 0.02 : vector ? 0 : 0.1;
    EXPECT_EQ(groups[p].weight_decay, decay) << name;
    EXPECT_EQ(groups[p].learning_rate_factor, name == "lm_head.weight" ? 0.25 : 1) << name;
  }
}

TEST(OracleGroups, OtherFixturesHaveTheDefaults) {
  const auto fixture = oracle::load("mqa");
  EXPECT_EQ(fixture.rules.weight_decay, fixture.training.weight_decay);
  EXPECT_EQ(fixture.rules.frozen + fixture.rules.lr_factors + fixture.rules.weight_decays, "");
  const auto names = oracle::fixture_names();
  EXPECT_EQ(std::count(names.begin(), names.end(), "groups_frozen"), 0);
}

}  // namespace
}  // namespace llampi::test
