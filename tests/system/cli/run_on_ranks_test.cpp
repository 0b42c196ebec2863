// SPDX-License-Identifier: Apache-2.0
// The collective exit: status and messages of jobs that end in different ways.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

Ending end_job(int ranks, const std::string& way) {
  const ScratchFolder folder;
  return shell(folder.path(), fmt::format("{} -n {} {} {}", MPIRUN, ranks, ENDING_JOB, way));
}

// What docs/failures.md says of exit statuses under mpirun.
TEST(RunOnRanks, TheStatusIsTheOneThatIsDocumented) {
  for (const int ranks : {1, 2}) {
    for (const auto& [way, status] : {std::pair("done", 0),
                                      {"stopped", 75},
                                      {"user-error", 2},
                                      {"common", 1},
                                      {"error", 1},
                                      {"killed", 137}}) {
      EXPECT_EQ(end_job(ranks, way).status, status) << way << " on " << ranks;
    }
  }
}

TEST(RunOnRanks, PassesTheStatusOn) {
  EXPECT_EQ(end_job(2, "done").status, 0);
  EXPECT_EQ(end_job(2, "done").err, "");
  const Ending stopped = end_job(3, "stopped");
  EXPECT_EQ(stopped.status, 75);
  EXPECT_THAT(stopped.complaints(), ElementsAre());
}

TEST(RunOnRanks, AUserErrorIsOneSentence) {
  const Ending ending = end_job(3, "user-error");
  EXPECT_EQ(ending.status, 2);
  EXPECT_THAT(ending.complaints(), ElementsAre("llampi: the sky is green; look again"));
  EXPECT_EQ(ending.out, "");
}

TEST(RunOnRanks, AnErrorOfAllRanksIsPrintedOnce) {
  const Ending ending = end_job(3, "common");
  EXPECT_EQ(ending.status, 1);
  EXPECT_THAT(ending.complaints(), ElementsAre("llampi: the sky has fallen"));
}

TEST(RunOnRanks, AUserErrorOfOneRankIsAgreedOn) {
  const Ending ending = end_job(3, "agreed");
  EXPECT_EQ(ending.status, 2);
  EXPECT_THAT(ending.complaints(), ElementsAre(MatchesRegex("llampi: rank 2 on .+: the sky is green")));
}

// The others would wait for it without an end.
TEST(RunOnRanks, AUserErrorOfOneRankAloneEndsTheJob) {
  for (const char* rank : {"0", "2"}) {
    const Ending ending = end_job(3, std::string("alone-") + rank);
    EXPECT_EQ(ending.status, 1);
    EXPECT_THAT(ending.err, HasSubstr("the sky is green\n")) << rank;
    EXPECT_THAT(ending.complaints().back(),
                MatchesRegex(
                    *rank == '0'
                        ? "llampi: rank 0 on .+: other ranks did not end with this one, so the job is aborted"
                        : "llampi: rank 2 on .+: the sky is green"));
  }
}

TEST(RunOnRanks, AFailingRankEndsTheJobWithItsName) {
  for (const char* way : {"error", "unknown"}) {
    const auto start = std::chrono::steady_clock::now();
    const Ending ending = end_job(3, way);
    EXPECT_EQ(ending.status, 1);
    EXPECT_THAT(ending.complaints(),
                ElementsAre(MatchesRegex("llampi: rank 2 on .+: a(n exception of unknown type| "
                                         "call failed on two lines)")));
    // "Within seconds": without the abort it would not end at all.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
}

}  // namespace
}  // namespace llampi::test
