// SPDX-License-Identifier: Apache-2.0
// What `llampi check` makes of the time that saving takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/preflight/checkpoint_checks.hpp"

namespace llampi::test {
namespace {

using ::testing::HasSubstr;
using train::judge_saving;
using train::Verdict;

TEST(Saving, MayTakeATenthOfTheTimeOfTraining) {
  // 100 steps of 0.9 s: 10 s for a checkpoint is a tenth of all.
  const auto good = judge_saving({.save_seconds = 9.99, .step_seconds = 0.9, .every = 100}, "run");
  EXPECT_EQ(good.verdict, Verdict::pass);
  EXPECT_EQ(good.name, "saving");
  EXPECT_EQ(
      good.text,
      "a checkpoint takes 9.99 s, and the 100 steps between two checkpoints take 90 s: saving is 10.0 % of the time");
  const auto bad = judge_saving({.save_seconds = 30, .step_seconds = 0.9, .every = 100}, "run");
  EXPECT_EQ(bad.verdict, Verdict::fail);
  EXPECT_EQ(
      bad.text,
      "a checkpoint takes 30 s, and the 100 steps between two checkpoints take 90 s: saving is 25.0 % of the time, "
      "more than 10 %; set checkpoint.every to 300 or more, set checkpoint.async = true, or use a faster file system "
      "than that of run");
  // What is advised is enough, and one less is not.
  EXPECT_EQ(judge_saving({.save_seconds = 30, .step_seconds = 0.9001, .every = 300}, "run").verdict,
            Verdict::pass);
  EXPECT_EQ(judge_saving({.save_seconds = 30, .step_seconds = 0.9, .every = 299}, "run").verdict,
            Verdict::fail);
}

TEST(Saving, MayTakeHalfOfTheTimeInTheBackground) {
  const auto judged = [](double save_seconds) {
    return judge_saving({.save_seconds = save_seconds, .step_seconds = 2, .every = 10, .in_background = true},
                        "run");
  };
  EXPECT_EQ(judged(9.9).verdict, Verdict::pass);
  EXPECT_THAT(judged(9.9).text, HasSubstr("written in the background during 49.5 % of that time"));
  EXPECT_EQ(judged(10.1).verdict, Verdict::fail);
  EXPECT_THAT(judged(10.1).text,
              HasSubstr("more than 50 %; set checkpoint.every to 11 or more, or use a faster"));
}

TEST(Saving, IsAtMultiplesOfTheKey) {
  EXPECT_FALSE(train::saves_before_the_end(0, 0, 100));
  EXPECT_FALSE(train::saves_before_the_end(100, 0, 100));
  EXPECT_TRUE(train::saves_before_the_end(99, 0, 100));
  EXPECT_TRUE(train::saves_before_the_end(60, 150, 200));  // at 180
  EXPECT_FALSE(train::saves_before_the_end(60, 180, 200));
}

TEST(Saving, OfLessThanASecondNeverFails) {
  EXPECT_EQ(judge_saving({.save_seconds = 0.99, .step_seconds = 0.001, .every = 1}, "run").verdict,
            Verdict::pass);
  EXPECT_EQ(judge_saving({.save_seconds = 1.01, .step_seconds = 0.001, .every = 1}, "run").verdict,
            Verdict::fail);
}

}  // namespace
}  // namespace llampi::test
