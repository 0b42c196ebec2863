// SPDX-License-Identifier: Apache-2.0
// Gradients of the whole model against central differences of its loss, in float64 on the reference device.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "llampi/model/llama.hpp"
#include "support/oracle.hpp"
#include "unit/model/model_runner.hpp"

namespace llampi::test {
namespace {

using namespace model;

struct GradientCase {
  const char* name;
  std::int64_t query_heads, key_value_heads, head_dim;
  bool tied, scaled_rope;
  std::vector<std::int32_t> documents;  ///< lengths, 2 sequences of 9 tokens
};

void PrintTo(const GradientCase& c, std::ostream* out) { *out << c.name; }

constexpr BatchShape kGradientShape = {.sequences = 2, .seq_len = 9};

LlamaConfig config_of(const GradientCase& c) {
  LlamaConfig config;
  config.vocab_size = 23;
  config.hidden_size = 14;
  config.intermediate_size = 18;
  config.layers = 2;
  config.query_heads = c.query_heads;
  config.key_value_heads = c.key_value_heads;
  config.head_dim = c.head_dim;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 50;
  if (c.scaled_rope) config.rope_scaling = Llama3Rope{4, 1, 4, 20};
  config.tie_word_embeddings = c.tied;
  return config;
}

device::HostBatch make_batch(const std::vector<std::int32_t>& documents, std::mt19937& random) {
  device::HostBatch batch(kGradientShape.tokens());
  std::int32_t at = 0;
  for (const std::int32_t length : documents) {
    batch.cu_seqlens()[static_cast<std::size_t>(batch.documents++)] = at;
    for (std::int32_t i = 0; i < length; ++i, ++at) {
      const auto token = static_cast<std::size_t>(at);
      batch.tokens()[token] = static_cast<std::int32_t>(random() % 23);
      batch.labels()[token] = random() % 5 == 0 ? -1 : static_cast<std::int32_t>(random() % 23);
      batch.positions()[token] = i;
      batch.valid_labels += batch.labels()[token] >= 0;
    }
  }
  batch.cu_seqlens()[static_cast<std::size_t>(batch.documents)] = at;
  return batch;
}

class Gradients : public ::testing::TestWithParam<GradientCase> {
 protected:
  Gradients()
      : model_(make_llama(config_of(GetParam()))),
        device_(device::make_reference_device()),
        runner_(*model_, *device_, kGradientShape, DType::float64),
        random_(kSeed) {
    RecordProperty("seed", kSeed);
    // Weights of 0.5 make every part of the model count; near 0 it would be nearly linear.
    runner_.set_parameters([](const Parameter& parameter, std::int64_t i) {
      return parameter.shape.size() == 1 ? oracle::initial_value(parameter, i)
                                         : 4 * oracle::initial_value(parameter, i);
    });
  }

  double loss_at(const device::HostBatch& batch, int parameter, std::int64_t element, double value) {
    const double before = runner_.parameter(parameter, element);
    runner_.set_parameter(parameter, element, value);
    const double loss = runner_.loss_sum(batch);
    runner_.set_parameter(parameter, element, before);
    return loss / static_cast<double>(batch.valid_labels);
  }

  /// Central difference of fourth order.
  double difference(const device::HostBatch& batch, int parameter, std::int64_t element) {
    const double x = runner_.parameter(parameter, element);
    const auto f = [&](double step) { return loss_at(batch, parameter, element, x + step * kStep); };
    return (8 * (f(1) - f(-1)) - (f(2) - f(-2))) / (12 * kStep);
  }

  static constexpr unsigned kSeed = 20240517;
  static constexpr double kStep = 0x1p-12;
  std::unique_ptr<Model> model_;
  std::unique_ptr<device::Device> device_;
  ModelRunner runner_;
  std::mt19937 random_;
};

// A loss near 4 carries rounding errors of some 1e-15, which the difference multiplies by 1.5 / step: 1e-11.
// The error of the formula is step^4 / 30 = 1e-16 times the fifth derivative of the loss; it was seen to fall
// 16 times per halved step, down to 7e-10 at this one. 2e-8 of the largest gradient of a tensor (1e-3 and
// more) leaves room for both; a wrong term is off by 1e-2.
TEST_P(Gradients, EqualCentralDifferences) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  const device::HostBatch batch = make_batch(GetParam().documents, random_);
  const double loss = runner_.backward(batch, 1.0 / static_cast<double>(batch.valid_labels));
  EXPECT_NEAR(loss, runner_.loss_sum(batch), 1e-13 * loss);

  for (int p = 0; p < static_cast<int>(model_->parameters().size()); ++p) {
    const auto& parameter = model_->parameters()[static_cast<std::size_t>(p)];
    const auto gradient = runner_.gradient(p);
    std::size_t largest = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_TRUE(std::isfinite(gradient[i])) << parameter.name << " element " << i;
      if (std::abs(gradient[i]) > std::abs(gradient[largest])) largest = i;
    }
    ASSERT_GT(std::abs(gradient[largest]), 1e-3) << parameter.name;
    for (int draw = 0; draw < 6; ++draw) {
      const std::size_t i = draw == 0 ? largest : random_() % gradient.size();
      EXPECT_NEAR(gradient[i], difference(batch, p, static_cast<std::int64_t>(i)),
                  2e-8 * std::abs(gradient[largest]))
          << parameter.name << " element " << i;
    }
  }
}

/// Two micro-batches with the same 1 / tokens leave the sum of their gradients, to rounding.
TEST_P(Gradients, OfMicroBatchesAddUp) {
  const device::HostBatch a = make_batch(GetParam().documents, random_), b = make_batch({9, 9}, random_);
  const double inverse_tokens = 1.0 / static_cast<double>(a.valid_labels + b.valid_labels);
  const auto gradients = [&] {
    std::vector<std::vector<double>> all;
    for (std::size_t p = 0; p < model_->parameters().size(); ++p)
      all.push_back(runner_.gradient(static_cast<int>(p)));
    return all;
  };
  runner_.backward(b, inverse_tokens);
  const auto of_b = gradients();
  runner_.backward(a, inverse_tokens);
  const auto of_a = gradients();
  runner_.backward(b, inverse_tokens, Accumulate::yes);
  const auto of_both = gradients();
  for (std::size_t p = 0; p < of_a.size(); ++p) {
    for (std::size_t i = 0; i < of_a[p].size(); ++i) {
      EXPECT_NEAR(of_both[p][i], of_a[p][i] + of_b[p][i], 1e-14)
          << model_->parameters()[p].name << " element " << i;
    }
  }
}

TEST_P(Gradients, DoNotCrossDocuments) {
  // The logits of a token depend on its own document only: what stands in the others may change.
  const device::HostBatch batch = make_batch(GetParam().documents, random_);
  device::HostBatch other = batch;
  const std::int32_t first = GetParam().documents[0];
  for (std::size_t t = static_cast<std::size_t>(first); t < other.tokens().size(); ++t) {
    other.tokens()[t] = (other.tokens()[t] + 1) % 23;
  }
  EXPECT_EQ(runner_.logits(batch, first - 1), runner_.logits(other, first - 1));
  EXPECT_NE(runner_.logits(batch, first), runner_.logits(other, first));
}

INSTANTIATE_TEST_SUITE_P(
    Models, Gradients,
    ::testing::Values(GradientCase{"multi_head_untied", 3, 3, 4, false, false, {9, 9}},
                      GradientCase{"grouped_tied_documents", 4, 2, 4, true, false, {2, 1, 6, 9}},
                      GradientCase{"multi_query_scaled_documents", 3, 1, 6, false, true, {9, 4, 5}},
                      GradientCase{"grouped_tied_scaled", 6, 2, 2, true, true, {9, 9}}),
    [](const auto& model) { return std::string(model.param.name); });

}  // namespace
}  // namespace llampi::test
