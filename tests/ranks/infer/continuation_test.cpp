// SPDX-License-Identifier: Apache-2.0
// Logits of sequences that grow, with keys and values kept, are those of whole sequences.
#include <gtest/gtest.h>

#include <numeric>

#include "infer/continuation.hpp"
#include "llampi/infer/session.hpp"
#include "llampi/model/llama.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace infer;

constexpr const char* kModel =
    R"({"model_type": "llama", "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40,
  "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 64,
  "initializer_range": 0.5})";

struct Loaded {
  std::unique_ptr<model::Model> model = model::make_llama(model::LlamaConfig::parse(kModel, "model"));
  std::unique_ptr<device::Device> device;
  std::unique_ptr<fsdp::Engine> engine;

  explicit Loaded(model::BatchShape shape, bool float64) {
    device = float64 ? device::make_reference_device() : device::make_cpu_device(1);
    fsdp::EngineOptions options;
    options.batch = shape;
    options.training = false;
    if (float64) {
      constexpr DType k = DType::float64;
      options.precision = {
          .param = k, .compute = k, .reduce = k, .master = k, .moment = k, .gradient_shard = k};
    }
    engine = std::make_unique<fsdp::Engine>(*model, *device, test_world(), options);
    engine->initialise(3);
  }
};

std::vector<double> whole_logits(fsdp::Engine& engine, const std::vector<std::int32_t>& tokens,
                                 std::int64_t length) {
  const std::int64_t shape = engine.options().batch.seq_len;
  device::HostBatch batch(shape);
  std::copy(tokens.begin(), tokens.begin() + length, batch.tokens().begin());
  std::fill(batch.labels().begin(), batch.labels().end(), -1);
  std::iota(batch.positions().begin(), batch.positions().end(), 0);
  batch.cu_seqlens()[1] = static_cast<std::int32_t>(shape);
  batch.documents = 1;
  return engine.logits(batch, length - 1);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

/// Feeds 50 tokens in pieces and compares after each.
void expect_the_same_logits(bool float64, double tolerance) {
  std::vector<std::int32_t> tokens(50);
  for (int i = 0; i < 50; ++i) tokens[i] = (7 * i * i + 3) % 61;
  const Loaded whole({1, 50}, float64), grown(generation_shape(50), float64);
  for (int repetition = 0; repetition < 2; ++repetition) {  // a second sequence sees nothing of the first
    Continuation continuation(*grown.engine);
    for (const std::int64_t piece : {20, 1, 1, 16, 3, 9}) {
      const auto begin = static_cast<std::size_t>(continuation.length());
      std::span<const std::int32_t> waiting(tokens.data() + begin, static_cast<std::size_t>(piece));
      std::vector<double> logits;
      while (!waiting.empty()) logits = continuation.pass(waiting);
      EXPECT_LE(largest_difference(logits, whole_logits(*whole.engine, tokens, continuation.length())),
                tolerance)
          << "after " << continuation.length();
    }
    std::reverse(tokens.begin(), tokens.end());
  }
}

TEST(Continuation, IsExactInFloat64) { expect_the_same_logits(true, 1e-12); }

// Logits are up to about 10 here: 2^-24 of that, a few dozen operations deep, with sums of up to 50 terms.
TEST(Continuation, IsNearOnCpus) { expect_the_same_logits(false, 1e-4); }

}  // namespace
}  // namespace llampi::test
