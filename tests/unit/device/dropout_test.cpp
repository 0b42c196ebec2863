// SPDX-License-Identifier: Apache-2.0
// Which elements of an adapter's input are dropped: how many, and of what it is a function.
#include <gtest/gtest.h>

#include <cmath>

#include "support/device_session.hpp"

namespace llampi::test {
namespace {

struct Sample {
  std::int64_t first_sample = 0;
  double probability = 0.25;
  std::uint64_t key = kSeed, purpose = 1;
};

constexpr std::int64_t kSeqLen = 32, kCols = 43;

/// drop(ones) of `samples` samples: the product with the unit matrix.
std::vector<double> kept(const Sample& which, std::int64_t samples) {
  const auto device = device::make_cpu_device(2);
  Session s(*device, DType::float32);
  const std::int64_t tokens = samples * kSeqLen;
  const Values ones{tokens, kCols, std::vector<double>(static_cast<std::size_t>(tokens * kCols), 1.0)};
  Values unit{kCols, kCols, std::vector<double>(static_cast<std::size_t>(kCols * kCols), 0.0)};
  for (std::int64_t i = 0; i < kCols; ++i) unit.data[static_cast<std::size_t>(i * kCols + i)] = 1;
  const auto word = [](std::uint64_t bits) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(bits));
  };
  const auto number = static_cast<std::uint64_t>(which.first_sample);
  const device::LowRank adapter{.a = s.upload(unit),
                                .b = {},
                                .u = s.output(tokens, kCols),
                                .dropout = {.probability = which.probability,
                                            .key = which.key,
                                            .purpose = which.purpose,
                                            .first_sample = s.integers({word(number), word(number >> 32)}),
                                            .seq_len = kSeqLen,
                                            .dropped = s.output(tokens, kCols)}};
  device->run(device::op::LowRankDown{.x = s.upload(ones), .adapters = {&adapter, 1}});
  return s.download(adapter.u).data;
}

std::vector<double> rows(const std::vector<double>& all, std::int64_t first_sample, std::int64_t samples) {
  const auto begin = all.begin() + first_sample * kSeqLen * kCols;
  return {begin, begin + samples * kSeqLen * kCols};
}

TEST(Dropout, DropsAsManyAsItSaysAndKeepsTheMean) {
  for (const double probability : {0.05, 0.25, 0.9}) {
    const auto values = kept({.probability = probability}, 64);
    const auto n = static_cast<double>(values.size());
    double zeros = 0, sum = 0;
    for (const double value : values) {
      zeros += value == 0 ? 1 : 0;
      sum += value;
      EXPECT_NEAR(value == 0 ? 1 / (1 - probability) : value, 1 / (1 - probability), 1e-3);
    }
    // Five standard deviations of a binomial distribution, and the step of 2^-16 of the probability.
    const double deviation = 5 * std::sqrt(probability * (1 - probability) / n) + 0x1p-16;
    EXPECT_NEAR(zeros / n, probability, deviation);
    EXPECT_NEAR(sum / n, 1, deviation / (1 - probability));
  }
}

TEST(Dropout, IsAFunctionOfTheSampleAndNotOfItsPlace) {
  const std::int64_t far = (std::int64_t{1} << 33) + 7;
  const auto all = kept({.first_sample = far}, 6);
  EXPECT_EQ(kept({.first_sample = far + 2}, 1), rows(all, 2, 1));
  EXPECT_EQ(kept({.first_sample = far + 3}, 3), rows(all, 3, 3));
}

TEST(Dropout, DiffersBetweenSamplesSeedsAndAdapters) {
  const auto all = kept({}, 2);
  EXPECT_NE(rows(all, 0, 1), rows(all, 1, 1));
  EXPECT_NE(kept({.key = kSeed + 1}, 1), rows(all, 0, 1));
  EXPECT_NE(kept({.purpose = 2}, 1), rows(all, 0, 1));
}

TEST(Dropout, NeighboursAreIndependent) {
  const auto values = kept({.probability = 0.5}, 64);
  double both = 0, pairs = 0;
  for (std::size_t i = 0; i + 1 < values.size(); ++i, ++pairs)
    both += values[i] == 0 && values[i + 1] == 0 ? 1 : 0;
  EXPECT_NEAR(both / pairs, 0.25,
              5 * std::sqrt(0.25 / pairs));  // pairs overlap: more than the deviation of independent ones
}

TEST(Dropout, ANegativeSampleKeepsAll) {
  for (const double value : kept({.first_sample = -1}, 1)) EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace llampi::test
