// SPDX-License-Identifier: Apache-2.0
// What a run knows of its data before the first step.
#include "train/inputs.hpp"
#include "train/tokenizer_check.hpp"

#include <gtest/gtest.h>

#include <array>

#include "support/files.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

class Inputs : public ::testing::Test {
 protected:
  std::unique_ptr<data::TokenFile> file(int documents) const {
    const auto path = folder_.path() / fmt::format("{}.h5", documents);
    data::TokenFileWriter writer(path, 61, "bytes");
    for (int i = 0; i < documents; ++i) writer.append_document(std::array<std::int32_t, 3>{7, 8, 9});
    writer.close();
    return std::make_unique<data::TokenFile>(path);
  }

  const TemporaryFolder folder_;
};

// A tokenizer may have more of them, as one with a token for padding has, as long as the file has none of those.
TEST_F(Inputs, RefuseIdsThatTheModelDoesNotHave) {
  model::LlamaConfig config;
  config.vocab_size = 10;
  train::check_vocabulary(*file(1), config, "m");
  config.vocab_size = 9;
  EXPECT_THAT(user_error([&] { train::check_vocabulary(*file(1), config, "m"); }),
              testing::AllOf(testing::HasSubstr("1.h5 has ids up to 9, but vocab_size of the model m is 9."),
                             testing::HasSubstr("an added token that the model has no row for")));
}

TEST_F(Inputs, OfSeveralFilesAreOfOneTokenizer) {
  const auto of = [&](const std::string& tokenizer) {
    const auto path = folder_ / fmt::format("{}.h5", tokenizer.empty() ? "unknown" : tokenizer);
    data::TokenFileWriter writer(path, 256, tokenizer);
    writer.append_document(std::vector<std::int32_t>(9, 1));
    writer.close();
    return data::TokenFile(path);
  };
  const auto refusal = [&](const std::vector<std::string>& train, const std::vector<std::string>& eval) {
    std::vector<data::TrainingData::Part> parts;
    for (const auto& tokenizer : train) parts.push_back({.file = of(tokenizer)});
    train::Inputs inputs;
    inputs.train = std::make_unique<data::TrainingData>(std::move(parts), 2, 0, false);
    for (const auto& tokenizer : eval) inputs.eval_files.push_back(of(tokenizer));
    train::Config config;
    config.model.config = (folder_ / "none").string();
    std::string message;
    try {
      train::check_tokenizers(config, inputs, "", Log());
    } catch (const UserError& error) {
      message = error.what();
    }
    return message;
  };
  EXPECT_EQ(refusal({"", "bpe", "bpe"}, {"", "bpe"}), "");
  for (const auto& train : {std::vector<std::string>{"", "bpe", "bytes"}, {"bpe", "", "bytes"}})
    EXPECT_THAT(refusal(train, {}),
                testing::HasSubstr("bytes.h5 was made with the tokenizer bytes, but data.train = "));
  EXPECT_THAT(refusal({"", "bpe"}, {"bpe", "bytes"}), testing::HasSubstr("data.eval = "));
}

TEST_F(Inputs, PackDocumentsWhereAFileHasSeveralThatDoNotSeeEachOther) {
  const auto packs = [&](int train, int eval, bool mask) {
    train::Inputs inputs;
    std::vector<data::TrainingData::Part> parts;
    parts.push_back({.file = std::move(*file(train))});
    inputs.train = std::make_unique<data::TrainingData>(std::move(parts), 2, 0, false);
    if (eval > 0) inputs.eval_files.push_back(std::move(*file(eval)));
    inputs.batch_options.document_mask = mask;
    return inputs.packs_documents();
  };
  EXPECT_TRUE(packs(2, 0, true));
  EXPECT_TRUE(packs(1, 2, true)) << "evaluations have them";
  EXPECT_FALSE(packs(1, 0, true));
  EXPECT_FALSE(packs(1, 1, true));
  EXPECT_FALSE(packs(2, 2, false));
}

}  // namespace
}  // namespace llampi::test
