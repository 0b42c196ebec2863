// SPDX-License-Identifier: Apache-2.0
// A packed row of conversations, as `llampi tokenize` writes it and the loader reads it, against the same
// conversations one by one.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "llampi/data/loader.hpp"
#include "llampi/data/tokenize.hpp"
#include "llampi/model/llama.hpp"
#include "support/fake_tokenizers.hpp"
#include "support/oracle.hpp"
#include "support/temporary_folder.hpp"
#include "unit/model/model_runner.hpp"

namespace llampi::test {
namespace {

using namespace model;

constexpr const char* kConversations[] = {
    R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, you."}]})",
    R"({"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]})",
    R"({"prompt": "Name a colour.", "completion": "Blue"})"};

struct Kind {
  const char* name;
  DType compute;
  std::unique_ptr<device::Device> (*make)();
  // Of sums that are formed in another order: the gradients are sums over 113 tokens, of products over at
  // most 261 elements, each rounded: 261 * 2^-53 = 3e-14 and 261 * 2^-24 = 1.6e-5 of the largest, if all
  // roundings went one way.
  double tolerance;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

LlamaConfig config() {
  LlamaConfig config;
  config.vocab_size = 261;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.layers = 2;
  config.query_heads = 4;
  config.key_value_heads = 2;
  config.head_dim = 4;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 100;
  return config;
}

class Packed : public ::testing::TestWithParam<Kind> {
 protected:
  using Gradients = std::vector<std::vector<double>>;

  /// The only row of a file of these conversations; as long as they are together if seq_len is 0.
  device::HostBatch row_of(std::span<const char* const> conversations, std::int64_t seq_len) {
    std::ofstream input(folder_ / "chat.jsonl");
    for (const auto* line : conversations) input << line << '\n';
    input.close();
    data::TokenizeOptions options;
    options.format = data::InputFormat::chat;
    options.inputs = {folder_ / "chat.jsonl"};
    options.output = folder_ / "tokens.h5";
    options.seq_len = seq_len > 0 ? seq_len : 1000;
    const auto tokenizer = BytesAndSpecials::llama3();
    const auto done = data::tokenize(tokenizer, options);
    EXPECT_EQ(done.output.rows, 1);
    if (seq_len == 0) return row_of(conversations, done.output.tokens);
    return data::make_batch(data::TokenFile(options.output),
                            {.seq_len = seq_len, .micro_batch = 1, .document_mask = true, .vocabulary = 261},
                            {0});
  }

  std::unique_ptr<ModelRunner> runner(const device::HostBatch& batch) {
    auto result = std::make_unique<ModelRunner>(*model_, *device_, BatchShape{1, batch.token_count()},
                                                GetParam().compute);
    result->set_parameters([](const Parameter& parameter, std::int64_t i) {
      return parameter.shape.size() == 1 ? oracle::initial_value(parameter, i)
                                         : 4 * oracle::initial_value(parameter, i);
    });
    return result;
  }
  Gradients gradients(const ModelRunner& runner) const {
    Gradients all;
    for (int p = 0; p < static_cast<int>(model_->parameters().size()); ++p) all.push_back(runner.gradient(p));
    return all;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Model> model_ = make_llama(config());
  std::unique_ptr<device::Device> device_ = GetParam().make();
  static constexpr std::int64_t kRow = 113;
};

TEST_P(Packed, HasTheLossAndGradientsOfItsDocuments) {
  auto row = row_of(kConversations, kRow);
  ASSERT_EQ(row.documents, 4) << "three conversations and what fills the row";
  const double inverse_tokens = 1.0 / static_cast<double>(row.valid_labels);
  const auto packed = runner(row);
  const double loss = packed->backward(row, inverse_tokens);
  const auto together = gradients(*packed);

  double sum = 0;
  std::int64_t valid = 0;
  Gradients one_by_one;
  for (const auto* conversation : kConversations) {
    const auto single = row_of({&conversation, 1}, 0);
    valid += single.valid_labels;
    const auto alone = runner(single);
    sum += alone->backward(single, inverse_tokens);
    const auto more = gradients(*alone);
    if (one_by_one.empty()) one_by_one.assign(more.size(), {});
    for (std::size_t p = 0; p < more.size(); ++p) {
      one_by_one[p].resize(more[p].size());
      for (std::size_t i = 0; i < more[p].size(); ++i) one_by_one[p][i] += more[p][i];
    }
  }
  EXPECT_EQ(valid, row.valid_labels);
  EXPECT_NEAR(loss, sum, GetParam().tolerance * sum);
  for (std::size_t p = 0; p < together.size(); ++p) {
    double largest = 0;
    for (const double g : one_by_one[p]) largest = std::max(largest, std::abs(g));
    ASSERT_GT(largest, 1e-4) << model_->parameters()[p].name;
    for (std::size_t i = 0; i < together[p].size(); ++i) {
      ASSERT_NEAR(together[p][i], one_by_one[p][i], GetParam().tolerance * largest)
          << model_->parameters()[p].name << " element " << i;
    }
  }
}

TEST_P(Packed, DocumentsDoNotFeelEachOther) {
  auto row = row_of(kConversations, kRow);
  const auto begin = row.cu_seqlens()[1], end = row.cu_seqlens()[2];  // of the second
  auto other = row;
  for (std::int32_t i = 0; i < kRow; ++i) {
    if (i < begin || i >= end)
      other.tokens()[static_cast<std::size_t>(i)] = (row.tokens()[static_cast<std::size_t>(i)] + 7) % 261;
  }
  const auto model = runner(row);
  for (std::int32_t i = begin; i < end; ++i) EXPECT_EQ(model->logits(row, i), model->logits(other, i));
  EXPECT_NE(model->logits(row, begin - 1), model->logits(other, begin - 1));

  // What the second document adds to the gradients, bit by bit.
  for (auto* batch : {&row, &other}) {
    for (std::int32_t i = 0; i < kRow; ++i) {
      if (i < begin || i >= end) batch->labels()[static_cast<std::size_t>(i)] = -1;
    }
  }
  const double loss = model->backward(row, 0.125);
  const auto of_row = gradients(*model);
  EXPECT_EQ(model->backward(other, 0.125), loss);
  EXPECT_EQ(gradients(*model), of_row);
  other.tokens()[static_cast<std::size_t>(begin)] = 7;
  model->backward(other, 0.125);
  EXPECT_NE(gradients(*model), of_row);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, Packed,
    ::testing::Values(Kind{"reference", DType::float64, device::make_reference_device, 3e-14},
                      Kind{"cpu", DType::float32, [] { return device::make_cpu_device(1); }, 1.6e-5}),
    [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace llampi::test
