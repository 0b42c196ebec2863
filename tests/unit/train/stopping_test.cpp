// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "llampi/train/stop.hpp"
#include "llampi/train/train.hpp"
#include "support/temporary_folder.hpp"
#include "train/stopping.hpp"

namespace llampi::test {
namespace {

using namespace train;

class StoppingTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  Stopping stopping(double max_hours = 0, int rank = 0) const {
    return Stopping(folder_.path(), max_hours, rank);
  }
};

TEST_F(StoppingTest, NobodyWantsTo) {
  auto s = stopping(1);
  EXPECT_FALSE(s.decide(s.vote(60)));
  EXPECT_EQ(s.reason(), StopReason::none);
}

TEST_F(StoppingTest, ASignalCountsOnce) {
  auto s = stopping();
  request_stop();
  EXPECT_TRUE(s.decide(s.vote(0)));
  EXPECT_EQ(s.text(), "by a signal");
  EXPECT_FALSE(s.decide(s.vote(0)));
}

TEST_F(StoppingTest, WhatDoesNotFitIntoTheTimeIsNotBegun) {
  auto s = stopping(1);
  EXPECT_FALSE(s.decide(s.vote(3500)));
  EXPECT_TRUE(s.decide(s.vote(3600)));
  EXPECT_EQ(s.text(), "because of run.max_hours");
}

TEST_F(StoppingTest, TellsWhatIsLeftOfTheTime) {
  EXPECT_EQ(stopping().seconds_left(), std::numeric_limits<double>::infinity());
  const double left = stopping(1).seconds_left();
  EXPECT_TRUE(0 < left && left <= 3600) << left;
}

TEST_F(StoppingTest, RankZeroLooksForTheFile) {
  std::ofstream(folder_ / "stop") << "";
  auto first = stopping(), second = stopping(0, 1);
  EXPECT_EQ(second.vote(0).file, 0);
  EXPECT_TRUE(first.file_is_there());
  EXPECT_FALSE(second.file_is_there());
  EXPECT_TRUE(second.decide(first.vote(0)));
  EXPECT_EQ(second.text(), "because of the file " + (folder_ / "stop").string());
  second.remove_file(Log());
  EXPECT_TRUE(std::filesystem::exists(folder_ / "stop"));
  first.remove_file(Log());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "stop"));
}

TEST_F(StoppingTest, LeavesATraceOfTheFileUntilTheRunGoesOn) {
  const auto stop = folder_ / "stop", stopped = folder_ / "stopped";
  const auto first = stopping(), second = stopping(0, 1);
  first.put_file_aside(Log());
  EXPECT_FALSE(std::filesystem::exists(stopped)) << "nobody has stopped it by the file";
  std::ofstream(stop) << "";
  second.put_file_aside(Log());
  EXPECT_TRUE(std::filesystem::exists(stop));
  first.put_file_aside(Log());
  EXPECT_FALSE(std::filesystem::exists(stop));
  second.forget_last_stop();
  EXPECT_TRUE(std::filesystem::exists(stopped));
  first.forget_last_stop();
  EXPECT_FALSE(std::filesystem::exists(stopped));
}

TEST_F(StoppingTest, WhatWasHeardOnceCountsFromThenOn) {
  auto s = stopping();
  StopTally tally(s);
  EXPECT_FALSE(tally.hear(tally.own(0)));
  request_stop();
  EXPECT_EQ(tally.own(0).signal, 1);
  EXPECT_EQ(tally.own(0).signal, 1) << "it was not heard the first time";
  EXPECT_FALSE(tally.stops());
  EXPECT_TRUE(tally.hear({.signal = 1}));
  EXPECT_TRUE(tally.hear({}));
  EXPECT_EQ(s.reason(), StopReason::signal);
  EXPECT_TRUE(tally.hear({.file = 1}));
  EXPECT_EQ(s.reason(), StopReason::file);
}

TEST_F(StoppingTest, WhatNeedsLessTimeIsAskedAgain) {
  auto s = stopping(1);
  StopTally tally(s);
  EXPECT_TRUE(tally.hear(tally.own(3601)));
  tally.forget_max_hours();
  EXPECT_FALSE(tally.stops());
  EXPECT_FALSE(tally.hear(tally.own(0)));
  EXPECT_TRUE(tally.hear({.max_hours = 1, .signal = 1}));
  tally.forget_max_hours();
  EXPECT_TRUE(tally.stops());
  EXPECT_EQ(s.reason(), StopReason::signal);
}

TEST_F(StoppingTest, TheLargestReasonOfManyRanksIsTold) {
  const auto out_of_time = stopping(1).vote(3601);
  request_stop();
  const auto signalled = stopping().vote(0);
  std::ofstream(folder_ / "stop") << "";
  const auto file = stopping().vote(0);
  auto s = stopping();
  StopVotes votes{.max_hours = 1'000'000 * out_of_time.max_hours};
  EXPECT_TRUE(s.decide(votes));
  EXPECT_EQ(s.reason(), StopReason::max_hours);
  votes.signal += signalled.signal;
  EXPECT_TRUE(s.decide(votes));
  EXPECT_EQ(s.reason(), StopReason::signal);
  votes.file += file.file;
  EXPECT_TRUE(s.decide(votes));
  EXPECT_EQ(s.reason(), StopReason::file);
}

}  // namespace
}  // namespace llampi::test
