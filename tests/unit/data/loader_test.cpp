// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/loader.hpp"

#include <map>

#include "unit/data/token_files.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kSeqLen = 5;
constexpr std::int64_t kMicroBatch = 2;
constexpr std::int64_t kGlobalBatch = 12;  // six, three and two micro-batches on 1, 2 and 3 ranks
constexpr data::BatchOptions kOptions{
    .seq_len = kSeqLen, .micro_batch = kMicroBatch, .document_mask = true, .vocabulary = 1000};

data::TrainingData training_data(data::TokenFile file) {
  std::vector<data::TrainingData::Part> parts;
  parts.push_back({.file = std::move(file)});
  return {std::move(parts), kSeqLen, 0, true};
}

/// Token i is i, so that a batch shows which sample it holds; documents of 0, 1, 2, ... tokens.
data::TokenFile numbered_file(const TemporaryFolder& folder, std::int32_t tokens) {
  std::vector<std::vector<std::int32_t>> documents(1);
  for (std::int32_t i = 0; i < tokens; ++i) {
    if (documents.back().size() + 1 == documents.size()) documents.emplace_back();
    documents.back().push_back(i);
  }
  return data::TokenFile(write_tokens(folder / "numbered.h5", 1000, documents));
}

bool same(const device::HostBatch& a, const device::HostBatch& b) {
  return std::ranges::equal(a.values(), b.values()) && a.documents == b.documents &&
         a.valid_labels == b.valid_labels;
}

/// Of a rank, with ranks that take turns.
std::vector<std::int64_t> numbers(int rank, int ranks) {
  std::vector<std::int64_t> result;
  for (std::int64_t n = rank; n < kGlobalBatch / kMicroBatch; n += ranks) result.push_back(n);
  return result;
}

TEST(Loader, GivesEachRankItsMicroBatches) {
  const TemporaryFolder folder;
  const auto data = training_data(numbered_file(folder, 400));
  const auto& file = data.parts().front().file;
  const auto samples = file.samples(kSeqLen);  // 79: six steps of 12, the rest dropped
  const data::Sampler sampler(samples, kGlobalBatch, 3, true);
  for (const int ranks : {1, 2, 3}) {
    std::map<std::int64_t, int> seen;
    for (int rank = 0; rank < ranks; ++rank) {
      data::Loader loader(data, kOptions, sampler, numbers(rank, ranks));
      for (std::int64_t step = 1; step <= sampler.steps_per_epoch(); ++step) {
        auto batches = loader.next(step);
        ASSERT_EQ(static_cast<std::int64_t>(batches.size()), kGlobalBatch / (ranks * kMicroBatch));
        for (std::size_t m = 0; m < batches.size(); ++m) {
          const std::int64_t first = (static_cast<std::int64_t>(m) * ranks + rank) * kMicroBatch;
          auto expected = data::make_batch(file, kOptions,
                                           {sampler.sample(step, first), sampler.sample(step, first + 1)});
          expected.set_first_sample((step - 1) * kGlobalBatch + first);
          EXPECT_TRUE(same(batches[m], expected)) << "rank " << rank << " of " << ranks << ", step " << step;
          for (std::int64_t i = 0; i < kMicroBatch; ++i) ++seen[batches[m].tokens()[i * kSeqLen] / kSeqLen];
        }
      }
    }
    EXPECT_EQ(seen.size(), 72U) << ranks << " ranks";
    for (const auto& [sample, times] : seen)
      EXPECT_EQ(times, 1) << "sample " << sample << ", " << ranks << " ranks";
  }
}

TEST(Loader, ReadsSeveralFiles) {
  const TemporaryFolder folder, other;
  std::vector<data::TrainingData::Part> parts;
  parts.push_back({.file = numbered_file(folder, 31)});  // 6 samples
  parts.push_back({.file = numbered_file(other, 81), .times = 1.5});
  const data::TrainingData data(std::move(parts), kSeqLen, 3, true);
  const data::Sampler sampler(data.samples(), kGlobalBatch, 3, true);
  EXPECT_EQ(sampler.steps_per_epoch(), 2);
  for (const int ranks : {1, 3}) {
    for (int rank = 0; rank < ranks; ++rank) {
      data::Loader loader(data, kOptions, sampler, numbers(rank, ranks));
      for (const std::int64_t step : {1, 2, 3, 8}) {
        auto batches = loader.next(step);
        for (std::size_t m = 0; m < batches.size(); ++m) {
          const std::int64_t first = (static_cast<std::int64_t>(m) * ranks + rank) * kMicroBatch;
          for (std::int64_t i = 0; i < kMicroBatch; ++i) {
            const auto place = data.place(sampler.sample(step, first + i), (step - 1) / 2);
            const auto tokens = batches[m].tokens().subspan(static_cast<std::size_t>(i * kSeqLen), kSeqLen);
            std::vector<std::int32_t> expected(kSeqLen);
            place.file->read(place.sample * kSeqLen, expected);
            EXPECT_TRUE(std::ranges::equal(tokens, expected)) << "step " << step << ", rank " << rank;
          }
        }
      }
    }
  }
}

TEST(Loader, StartsAnywhereAndJumps) {
  const TemporaryFolder folder;
  const auto data = training_data(numbered_file(folder, 400));
  const auto& file = data.parts().front().file;
  const data::Sampler sampler(file.samples(kSeqLen), kGlobalBatch, 3, true);
  data::Loader loader(data, kOptions, sampler, numbers(1, 2));
  for (const std::int64_t step : {5, 6, 7, 7, 2, 100, 101, 1}) {
    const auto batches = loader.next(step);
    auto expected = data::make_batch(file, kOptions, {sampler.sample(step, 2), sampler.sample(step, 3)});
    expected.set_first_sample((step - 1) * kGlobalBatch + 2);
    EXPECT_TRUE(same(batches[0], expected)) << "step " << step;
  }
}

TEST(Loader, CarriesFailuresToTheStepThatMeetsThem) {
  const TemporaryFolder folder;
  const auto data = training_data(numbered_file(folder, 400));
  const auto& file = data.parts().front().file;
  const data::Sampler sampler(file.samples(kSeqLen), kGlobalBatch, 0, false);
  auto options = kOptions;
  options.vocabulary = 100;  // step 1 reads tokens 0 to 60, step 2 tokens 60 to 120
  data::Loader loader(data, options, sampler, numbers(0, 1));
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(loader.next(1).size(), 6U);
    const auto message = user_error([&] { loader.next(2); });
    EXPECT_THAT(message, ::testing::HasSubstr("token 100 at position 100"));
  }
}

TEST(Loader, CanBeDestroyedAtAnyTime) {
  const TemporaryFolder folder;
  const auto data = training_data(numbered_file(folder, 400));
  const auto& file = data.parts().front().file;
  const data::Sampler sampler(file.samples(kSeqLen), kGlobalBatch, 3, true);
  for (int i = 0; i < 50; ++i) {
    data::Loader loader(data, kOptions, sampler, numbers(0, 1));
    if (i % 2 == 1) loader.next(i);
  }
}

}  // namespace
}  // namespace llampi::test
