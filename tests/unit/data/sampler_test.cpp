// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/sampler.hpp"

#include <cmath>

#include "support/files.hpp"

namespace llampi::test {
namespace {

std::vector<std::int64_t> values(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  const data::Permutation permutation(size, seed, epoch);
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < size; ++i) result.push_back(permutation(i));
  return result;
}

void expect_bijection(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  std::vector<bool> seen(static_cast<std::size_t>(size));
  for (const auto value : values(size, seed, epoch)) {
    ASSERT_GE(value, 0);
    ASSERT_LT(value, size);
    ASSERT_FALSE(seen[static_cast<std::size_t>(value)]) << "size " << size << ", epoch " << epoch;
    seen[static_cast<std::size_t>(value)] = true;
  }
}

TEST(Permutation, IsABijection) {
  for (std::int64_t size = 1; size <= 70; ++size) {
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) expect_bijection(size, 5, epoch);
  }
  expect_bijection(300'007, 1, 0);
  const data::Permutation huge(std::int64_t{1} << 40, 3, 2);
  for (std::int64_t i = 0; i < 100; ++i) {
    EXPECT_GE(huge(i), 0);
    EXPECT_LT(huge(i), std::int64_t{1} << 40);
  }
}

TEST(Permutation, DiffersByEpochAndSeedAndRepeats) {
  const auto first = values(1000, 5, 0);
  EXPECT_EQ(values(1000, 5, 0), first);
  EXPECT_NE(values(1000, 5, 1), first);
  EXPECT_NE(values(1000, 6, 0), first);
}

// A change here changes the data order of every run that is resumed.
TEST(Permutation, KeepsItsOrder) {
  const auto order = values(1000, 0, 0);
  EXPECT_THAT(std::vector(order.begin(), order.begin() + 6),
              ::testing::ElementsAre(347, 288, 425, 380, 513, 355));
}

// Over independent keys every index must go to every place equally often: each count is binomial(epochs,
// 1/size), and five standard deviations are left for the largest of some hundred counts.
TEST(Permutation, GoesEverywhereEquallyOften) {
  constexpr int kEpochs = 3000;
  constexpr std::uint64_t kSeed = 17;
  for (const std::int64_t size : {2, 3, 5, 10}) {
    std::vector<int> counts(static_cast<std::size_t>(size * size));
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      const data::Permutation permutation(size, kSeed, epoch);
      for (std::int64_t i = 0; i < size; ++i) ++counts[static_cast<std::size_t>(i * size + permutation(i))];
    }
    const double p = 1.0 / static_cast<double>(size);
    const double deviation = std::sqrt(kEpochs * p * (1 - p));
    for (const int count : counts)
      EXPECT_NEAR(count, kEpochs * p, 5 * deviation) << "size " << size << ", seed " << kSeed;
  }
}

// Neighbours must not stay neighbours: of n - 1 pairs, 2 (n - 1) / n = 2 are expected to, with a standard
// deviation of about sqrt(2); 12 is seven of them away.
TEST(Permutation, SeparatesNeighbours) {
  const auto order = values(5000, 9, 4);
  int neighbours = 0;
  for (std::size_t i = 1; i < order.size(); ++i) neighbours += std::abs(order[i] - order[i - 1]) == 1 ? 1 : 0;
  EXPECT_LE(neighbours, 12);
}

TEST(Sampler, FollowsTheFileWithoutShuffle) {
  const data::Sampler sampler(11, 4, 0, false);
  EXPECT_EQ(sampler.steps_per_epoch(), 2);
  const std::vector<std::vector<std::int64_t>> expected{
      {0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 2, 3}, {4, 5, 6, 7}};
  for (std::int64_t step = 1; step <= 4; ++step) {
    EXPECT_EQ(sampler.epoch(step), (step - 1) / 2);
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(sampler.sample(step, i), expected[step - 1][i]);
  }
}

TEST(Sampler, ShufflesEachEpochAnew) {
  const data::Sampler sampler(103, 10, 7, true);
  std::vector<std::vector<std::int64_t>> epochs(2);
  for (std::int64_t step = 1; step <= 20; ++step) {
    for (std::int64_t i = 0; i < 10; ++i) {
      epochs[static_cast<std::size_t>(sampler.epoch(step))].push_back(sampler.sample(step, i));
    }
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    auto& samples = epochs[static_cast<std::size_t>(epoch)];
    const auto order = values(103, 7, epoch);
    EXPECT_EQ(samples, std::vector(order.begin(), order.begin() + 100));  // the rest is dropped
  }
}

TEST(Sampler, RefusesTooFewSamples) {
  const auto message = user_error([] { data::Sampler(7, 8, 0, true); });
  EXPECT_THAT(message, ::testing::HasSubstr("7 samples"));
  EXPECT_THAT(message, ::testing::HasSubstr("global_batch = 8"));
  EXPECT_EQ(data::Sampler(8, 8, 0, true).steps_per_epoch(), 1);
}

}  // namespace
}  // namespace llampi::test
