// SPDX-License-Identifier: Apache-2.0
#include "support/expect_trajectory.hpp"

#include <gtest/gtest.h>

namespace llampi::test {
namespace {

using namespace fsdp;

void expect_steps(const Trajectory& t, const std::vector<oracle::Step>& expected,
                  const Tolerance& tolerance) {
  ASSERT_EQ(t.losses.size(), expected.size());
  for (std::size_t i = 0; i < t.losses.size(); ++i) {
    EXPECT_NEAR(t.losses[i], expected[i].loss, tolerance.loss * expected[i].loss) << "step " << i + 1;
    EXPECT_NEAR(t.grad_norms[i], expected[i].grad_norm, tolerance.norm * expected[i].grad_norm)
        << "step " << i + 1;
  }
}

void expect_final(const Trajectory& t, const std::map<std::string, oracle::Summary>& expected,
                  const Tolerance& tolerance) {
  ASSERT_EQ(t.final_parameters.size(), expected.size());
  for (const auto& [name, summary] : expected) {
    const auto actual = oracle::summarize(t.final_parameters.at(name));
    EXPECT_NEAR(actual.norm, summary.norm, tolerance.parameter_norm * summary.norm) << name;
    EXPECT_NEAR(actual.dot, summary.dot, tolerance.parameter_probe * summary.norm) << name;
  }
}

}  // namespace

void expect_oracle(const Trajectory& t, const oracle::Fixture& fixture, const Tolerance& tolerance) {
  expect_steps(t, fixture.steps, tolerance);
  expect_final(t, fixture.final_parameters, tolerance);
}

void expect_near(const Trajectory& t, const Trajectory& expected, const Tolerance& tolerance) {
  std::vector<oracle::Step> steps;
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    steps.push_back({.loss = expected.losses[i], .grad_norm = expected.grad_norms[i]});
  std::map<std::string, oracle::Summary> summaries;
  for (const auto& [name, values] : expected.final_parameters) summaries[name] = oracle::summarize(values);
  expect_steps(t, steps, tolerance);
  expect_final(t, summaries, tolerance);
}

bool same_bits(const Trajectory& a, const Trajectory& b) {
  return a.losses == b.losses && a.grad_norms == b.grad_norms && a.final_parameters == b.final_parameters;
}

void expect_same_bits(const Trajectory& a, const Trajectory& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.grad_norms, b.grad_norms) << what;
  EXPECT_EQ(a.final_parameters.size(), b.final_parameters.size()) << what;
  for (const auto& [name, values] : a.final_parameters)
    EXPECT_TRUE(values == b.final_parameters.at(name)) << what << ": " << name << " differs";
}

}  // namespace llampi::test
