// SPDX-License-Identifier: Apache-2.0
// When ranks speak that know the same.
#include "health/delays.hpp"

#include <gtest/gtest.h>

#include <map>

namespace llampi::test {
namespace {

using namespace health;

// However many ranks there are, the first of a node hears a few hundred in a second at most, and no thousand of them write
// files at once.
TEST(Delays, AThousandRanksNeverSpeakAtOnce) {
  for (const int ranks : {1, 2, 64, 256, 257, 1024, 4096}) {
    SCOPED_TRACE(ranks);
    std::map<int, int> beats_in, reports_in;  // in each tenth of a second
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_LT(heartbeat_delay(rank, ranks, 0.2), 0.2);
      ++beats_in[static_cast<int>(10 * heartbeat_delay(rank, ranks, 60))];
      ++reports_in[static_cast<int>(10 * report_delay(rank, ranks, 60))];
    }
    for (const auto& [tenth, count] : beats_in) EXPECT_LE(count, kSpeakersPerSecond / 10 + 1) << tenth;
    for (const auto& [tenth, count] : reports_in) EXPECT_LE(count, kWritersPerSecond / 10 + 1) << tenth;
    EXPECT_LT(report_delay(ranks - 1, ranks, 0.7), 0.7) << "when mpirun is about to kill them";
  }
}

TEST(Delays, RanksThatAllKnowWhatIsWrongSpeakInTurnButNotForEver) {
  EXPECT_LT(turn_of(1), turn_of(2));
  EXPECT_LE(turn_of(4095), 5);
}

}  // namespace
}  // namespace llampi::test
