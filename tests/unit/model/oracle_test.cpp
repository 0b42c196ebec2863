// SPDX-License-Identifier: Apache-2.0
// Loss, logits and gradients of whole models against PyTorch in float64 (tests/oracle).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/oracle.hpp"
#include "unit/model/model_runner.hpp"

namespace llampi::test {
namespace {

using namespace model;

struct Tolerance {
  double loss;      ///< relative; also of the gradient norm and the norms of tensors
  double elements;  ///< of `dot` and of single elements, relative to the norm of the tensor
};

// Both sides are float64 with sums of at most some thousand terms, in another order.
constexpr Tolerance kFloat64 = {1e-12, 1e-12};
// Rounding alone makes 2e-7 of the loss and of the norms, and 2e-6 of `dot` (tests/oracle/README.md, measured
// with PyTorch in float32). Other kernels sum in another order, which changes these errors but not their
// size: a factor of five.
constexpr Tolerance kFloat32 = {1e-6, 1e-5};

void expect_summary(const oracle::Summary& expected, std::span<const double> values,
                    const Tolerance& tolerance, const std::string& name) {
  const auto actual = oracle::summarize(values);
  EXPECT_NEAR(actual.norm, expected.norm, tolerance.loss * expected.norm) << name;
  EXPECT_NEAR(actual.dot, expected.dot, tolerance.elements * expected.norm) << name;
  for (std::size_t i = 0; i < expected.first.size(); ++i) {
    EXPECT_NEAR(actual.first[i], expected.first[i], tolerance.elements * expected.norm)
        << name << " element " << i;
  }
}

/// The batch of step 1 in two micro-batches.
void expect_initial(const oracle::Fixture& fixture, device::Device& device, DType compute,
                    const Tolerance& tolerance) {
  const auto model = make_llama(fixture.config, {}, fixture.lora);
  const BatchShape shape = {.sequences = fixture.global_batch / 2, .seq_len = fixture.seq_len};
  ModelRunner runner(*model, device, shape, compute);
  runner.set_parameters(oracle::initial_value);
  std::vector<std::int64_t> samples(static_cast<std::size_t>(fixture.global_batch));
  std::iota(samples.begin(), samples.end(), 0);
  const auto half = static_cast<std::size_t>(shape.sequences);
  const device::HostBatch first = fixture.batch(std::span(samples).first(half));
  const device::HostBatch second = fixture.batch(std::span(samples).subspan(half));

  ASSERT_EQ(first.valid_labels + second.valid_labels, fixture.initial.valid_tokens);
  const double inverse_tokens = 1.0 / static_cast<double>(fixture.initial.valid_tokens);
  EXPECT_NEAR((runner.loss_sum(first) + runner.loss_sum(second)) * inverse_tokens, fixture.initial.loss,
              tolerance.loss * fixture.initial.loss);
  const double loss =
      runner.backward(first, inverse_tokens) + runner.backward(second, inverse_tokens, Accumulate::yes);
  EXPECT_NEAR(loss * inverse_tokens, fixture.initial.loss, tolerance.loss * fixture.initial.loss);

  const auto is_trained = [&](const Parameter& parameter) { return !fixture.lora || parameter.adapter; };
  ASSERT_EQ(std::ranges::count_if(model->parameters(), is_trained), std::ssize(fixture.initial.gradients));
  double squares = 0;
  std::vector<std::vector<double>> gradients(model->parameters().size());
  for (std::size_t p = 0; p < model->parameters().size(); ++p) {
    if (!is_trained(model->parameters()[p])) continue;
    const auto& name = model->parameters()[p].name;
    const auto gradient = gradients[p] = runner.gradient(static_cast<int>(p));
    expect_summary(fixture.initial.gradients.at(name), gradient, tolerance, name);
    for (const double g : gradient) squares += g * g;
  }
  EXPECT_NEAR(std::sqrt(squares), fixture.initial.grad_norm, tolerance.loss * fixture.initial.grad_norm);
  runner.backward(first, inverse_tokens, Accumulate::no, true);
  runner.backward(second, inverse_tokens, Accumulate::yes, true);
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    if (gradients[p].empty()) continue;
    EXPECT_EQ(runner.gradient(static_cast<int>(p)), gradients[p])
        << model->parameters()[p].name << ", recomputed";
  }

  std::vector<double> logits;
  for (std::int64_t row = 0; row < fixture.seq_len; ++row) {
    const auto of_row = runner.logits(first, row);
    logits.insert(logits.end(), of_row.begin(), of_row.end());
  }
  expect_summary(fixture.initial.logits, logits, tolerance, "logits");
}

class Oracle : public ::testing::TestWithParam<std::string> {
 protected:
  const oracle::Fixture fixture_ = oracle::load(GetParam());
};

TEST_P(Oracle, HasTheSameWeights) {
  const auto model = make_llama(fixture_.config, {}, fixture_.lora);
  ASSERT_EQ(model->parameters().size(), fixture_.initial.parameters.size());
  for (const auto& parameter : model->parameters()) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < parameter.elements(); ++i)
      values.push_back(oracle::initial_value(parameter, i));
    const auto& expected = fixture_.initial.parameters.at(parameter.name);
    expect_summary(expected, values, kFloat64, parameter.name);
    EXPECT_EQ(oracle::summarize(values).first, expected.first) << parameter.name;
  }
}

TEST_P(Oracle, HasTheSameTokens) {
  std::int64_t sample = 0;
  for (const auto& step : fixture_.steps) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(fixture_.global_batch));
    std::iota(samples.begin(), samples.end(), sample);
    sample += fixture_.global_batch;
    EXPECT_EQ(fixture_.batch(samples).valid_labels, step.valid_tokens);
  }
}

TEST_P(Oracle, TheReferenceDeviceEqualsPyTorchInFloat64) {
  const auto device = device::make_reference_device();
  expect_initial(fixture_, *device, DType::float64, kFloat64);
}

TEST_P(Oracle, TheCpuDeviceIsNearPyTorchInFloat32) {
  const auto device = device::make_cpu_device(2);
  expect_initial(fixture_, *device, DType::float32, kFloat32);
}

INSTANTIATE_TEST_SUITE_P(Adapters, Oracle, ::testing::Values("lora_all", "lora_some"),
                         [](const auto& fixture) { return fixture.param; });
INSTANTIATE_TEST_SUITE_P(Fixtures, Oracle, ::testing::ValuesIn(oracle::fixture_names()),
                         [](const auto& fixture) { return fixture.param; });

TEST(OracleNumbers, AreSplitmix64OfFnv1a) {
  // splitmix64(0) and FNV-1a of "a", from tests/oracle/README.md.
  EXPECT_EQ(oracle::draw("a", 0 - 0xAF63DC4C8601EC8CU), 0xE220A8397B1DCDAFU);
}

}  // namespace
}  // namespace llampi::test
