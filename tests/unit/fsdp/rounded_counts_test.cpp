// SPDX-License-Identifier: Apache-2.0
// How many kinds of steps there are, each of which is issued once and captured once.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>

#include "fsdp/runtime/inputs.hpp"
#include "llampi/core/philox.hpp"

namespace llampi::test {
namespace {

using fsdp::BatchCounts;
using fsdp::RoundedCounts;

constexpr model::BatchShape kShape{.sequences = 2, .seq_len = 4096};

/// Random documents, of up to `most` tokens, of a micro-batch.
BatchCounts random_documents(const RandomStream& random, std::uint64_t& drawn, std::int64_t most) {
  BatchCounts counts;
  for (std::int64_t s = 0; s < kShape.sequences; ++s) {
    for (std::int64_t left = kShape.seq_len; left > 0;) {
      const auto bits = random.bits(drawn++) % static_cast<std::uint64_t>(most);
      const std::int64_t length = std::min(left, 1 + static_cast<std::int64_t>(bits));
      ++counts.documents;
      ++counts.lengths.documents.at(device::LengthClasses::of(length));
      left -= length;
    }
  }
  return counts;
}

// Each of the numbers is a power of two up to the tokens, or zero, and never falls.
TEST(RoundedCounts, AreFewHoweverManyStepsThereAre) {
  const auto powers = std::bit_width(static_cast<std::uint64_t>(kShape.tokens()));
  const int numbers = 1 + device::LengthClasses::of(kShape.seq_len) + 1;
  const RandomStream random(17, "documents");
  std::uint64_t drawn = 0;
  RoundedCounts rounded;
  std::set<BatchCounts> kinds;
  BatchCounts before;
  int changes = 0;
  for (int step = 0; step < 300; ++step) {
    // Of all sizes at first, as files mix them, and then ever shorter ones.
    const std::int64_t most =
        step < 150 ? std::int64_t{1} << random.bits(drawn++) % 13 : 4096 >> (step - 150) / 12;
    const BatchCounts documents = random_documents(random, drawn, most);
    const BatchCounts counts = rounded.of(documents, kShape);
    kinds.insert(counts);
    changes += counts != before ? 1 : 0;
    const auto expect_rounded = [](std::int64_t number, std::int64_t real) {
      EXPECT_GE(number, real);
      EXPECT_LE(std::popcount(static_cast<std::uint64_t>(number)), 1) << number;
    };
    expect_rounded(counts.documents, documents.documents);
    for (std::size_t c = 0; c < documents.lengths.documents.size(); ++c)
      expect_rounded(counts.lengths.documents[c], documents.lengths.documents[c]);
    before = counts;
  }
  EXPECT_EQ(changes, static_cast<int>(kinds.size())) << "a kind came back after another";
  EXPECT_LE(kinds.size(), static_cast<std::size_t>(numbers * powers));
}

// They come back after others: which products there are does not depend on the steps before.
TEST(RoundedCounts, OfLabelsAreQuartersOfAMicroBatch) {
  RoundedCounts rounded;
  device::HostBatch batch(kShape.tokens());
  batch.cut_into_documents(64);
  const auto counted = [&](std::int64_t labels) {
    batch.valid_labels = labels;
    return rounded.of(batch.counts(), kShape).valid_labels;
  };
  EXPECT_EQ(counted(2049), 4096);
  EXPECT_EQ(counted(8192), 8192);
  EXPECT_EQ(counted(1), 2048);
  EXPECT_EQ(counted(2048), 2048);
  EXPECT_EQ(counted(0), 0) << "which says that they are not counted";
  device::HostBatch odd(5);
  odd.valid_labels = 5;
  EXPECT_EQ(odd.counts().valid_labels, 5);
  odd.valid_labels = 3;
  EXPECT_EQ(odd.counts().valid_labels, 4);
}

// Between them as often as they like.
TEST(RoundedCounts, OfWholeSequencesAreTheirOwn) {
  const RandomStream random(18, "documents");
  std::uint64_t drawn = 0;
  RoundedCounts rounded;
  rounded.of(random_documents(random, drawn, 100), kShape);
  const BatchCounts whole{kShape.sequences, {}};
  BatchCounts most = whole;
  most.lengths.documents[device::LengthClasses::of(kShape.seq_len)] = kShape.sequences;
  EXPECT_EQ(rounded.of(most, kShape), whole);
}

}  // namespace
}  // namespace llampi::test
