// SPDX-License-Identifier: Apache-2.0
// Tests that pass, fail, are skipped, crash or hang, for run_gpu_tests_test.sh: GTEST_FILTER says which are
// run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace {

TEST(Judged, Passes) {}
TEST(Judged, PassesToo) {}
TEST(Judged, Fails) { EXPECT_EQ(1, 2) << "result=\"completed\""; }
TEST(Judged, IsSkipped) { GTEST_SKIP() << "no GPU to test: there is no driver"; }
TEST(Judged, IsForFourRanks) { GTEST_SKIP() << "for four ranks"; }
TEST(Judged, NeedsRanks) { GTEST_SKIP() << "needs ranks"; }
TEST(Judged, NeedsRanksToo) { GTEST_SKIP() << "needs ranks"; }
TEST(Judged, Crashes) { std::abort(); }
TEST(Judged, Hangs) { pause(); }
TEST(Judged, DISABLED_IsNotRun) {}

}  // namespace
