// SPDX-License-Identifier: Apache-2.0
// Many ranks in few words.
#include <gmock/gmock.h>

#include "health/overview.hpp"

namespace llampi::test {
namespace {

using namespace health;

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Heartbeat heartbeat_with(std::initializer_list<FlightMark> marks) {
  Heartbeat heartbeat;
  std::copy(marks.begin(), marks.end(), heartbeat.marks.begin());
  return heartbeat;
}

OverviewPart part(const Heartbeat& heartbeat, std::vector<int> ranks, double still = 0, double side = 0) {
  return {overview_of(heartbeat, still, side), [ranks] { return ranks; }};
}

TEST(Overview, TellsTheLeastStillAndTheLongestHeldUp) {
  Heartbeat saving;
  saving.side_work = FixedText<44>("saving a checkpoint in the background");
  Heartbeat waiting = saving;
  waiting.side_work_waits = true;
  Heartbeat starting;
  starting.phase = FixedText<44>("starts");
  const std::vector<OverviewPart> parts = {part(saving, {0}, 5, 7), part(waiting, {1}, 3, 9),
                                           part({}, {2}, 4, 8)};
  Overview all = combine(parts);
  EXPECT_EQ(all.stalled_seconds, 3);
  EXPECT_EQ(all.side_work_stalled_seconds, 7) << "who waits or saves nothing is not held up";
  EXPECT_FALSE(all.phase);
  all.absent.push_back({3, true, false, 1});
  all = aged(all, 2);
  EXPECT_EQ(all.stalled_seconds, 5);
  EXPECT_EQ(all.side_work_stalled_seconds, 9);
  EXPECT_EQ(all.absent.front().silent_seconds, 3);
  EXPECT_TRUE(combine(std::vector{OverviewPart{all, {}}, part(starting, {4})}).phase);
}

TEST(Overview, KeepsMarksOfWhichAllHaveTold) {
  const auto never = [] {
    ADD_FAILURE() << "the ranks are asked for only where they differ";
    return std::vector<int>{};
  };
  std::vector<OverviewPart> parts = {part(heartbeat_with({{64, 1}, {128, 2}}), {0}),
                                     part(heartbeat_with({{128, 2}, {192, 3}, {128, 2}}), {1})};
  for (auto& one : parts) one.ranks = never;
  const Overview all = combine(parts);
  ASSERT_THAT(all.marks, SizeIs(1));
  EXPECT_EQ(all.marks[0].sequence, 128);
  ASSERT_THAT(all.marks[0].parts, SizeIs(1));
  EXPECT_EQ(all.marks[0].parts[0].hash, 2);
  EXPECT_THAT(all.marks[0].parts[0].ranks, IsEmpty());
}

TEST(Overview, NamesTheRanksOfEachHashThroughLevels) {
  const auto at_64 = [](std::uint64_t hash) { return heartbeat_with({{64, hash}}); };
  const std::vector<OverviewPart> lower = {part(at_64(1), {4}), part(at_64(9), {5}), part(at_64(1), {6, 7})};
  const std::vector<OverviewPart> upper = {part(at_64(1), {0, 1}), {combine(lower), {}}, part(at_64(9), {8})};
  const Overview all = combine(upper);
  ASSERT_THAT(all.marks, SizeIs(1));
  ASSERT_THAT(all.marks[0].parts, SizeIs(2));
  EXPECT_THAT(all.marks[0].parts[0].ranks, ElementsAre(0, 1, 4, 6, 7));
  EXPECT_THAT(all.marks[0].parts[1].ranks, ElementsAre(5, 8));
}

}  // namespace
}  // namespace llampi::test
