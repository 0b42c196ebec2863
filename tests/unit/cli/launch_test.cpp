// SPDX-License-Identifier: Apache-2.0
// Processes that were started together, and a world in which each is alone.
#include "cli/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace llampi::test {
namespace {

using namespace cli;

using ::testing::StartsWith;
using Verdict = Launch::Verdict;
using Variables = std::map<std::string, std::string>;

Launch inspect(int ranks, Variables variables) {
  return inspect_launch(ranks, [&](const char* name) { return variables[name]; });
}

TEST(Launch, IsRightWhereMpiSeesWhatWasStarted) {
  EXPECT_EQ(inspect(1, {}).verdict, Verdict::right);
  EXPECT_EQ(inspect(4, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"SLURM_NTASKS", "4"}}).verdict, Verdict::right);
  EXPECT_EQ(inspect(4, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}}).verdict, Verdict::right);
  // One rank, and meant: mpirun -n 1 and srun -n 1 within a job of four tasks.
  EXPECT_EQ(inspect(1, {{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_NTASKS", "4"}}).verdict, Verdict::right);
  EXPECT_EQ(
      inspect(1, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "1"}}).verdict,
      Verdict::right);
  EXPECT_EQ(inspect(1, {{"OMPI_COMM_WORLD_SIZE", "x"}, {"SLURM_NTASKS", ""}}).verdict, Verdict::right);
}

TEST(Launch, IsWrongWhereProcessesDoNotFindEachOther) {
  Variables step{{"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "0"}};
  const Launch first = inspect(1, step);
  EXPECT_EQ(first.verdict, Verdict::wrong);
  EXPECT_EQ(
      first.sentence,
      "srun started 4 processes, but each has an MPI_COMM_WORLD of size 1: launcher and MPI do not match; start "
      "with srun --mpi=pmix, or with mpirun");
  EXPECT_TRUE(first.speaks);
  step["SLURM_PROCID"] = "2";
  EXPECT_EQ(inspect(1, step).verdict, Verdict::wrong);
  EXPECT_FALSE(inspect(1, step).speaks);
  EXPECT_THAT(inspect(1, {{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}).sentence,
              StartsWith("the launcher started 2 processes"));
  EXPECT_THAT(inspect(1, {{"OMPI_COMM_WORLD_SIZE", "2"}}).sentence, StartsWith("mpirun started 2 processes"));
}

TEST(Launch, IsSuspiciousInABatchScriptWithoutALauncher) {
  const Launch launch = inspect(1, {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(launch.verdict, Verdict::suspicious);
  EXPECT_EQ(
      launch.sentence,
      "the Slurm job has 4 tasks, but this is a run of one process; to use them all, start it with srun "
      "--mpi=pmix or mpirun");
}

}  // namespace
}  // namespace llampi::test
