// SPDX-License-Identifier: Apache-2.0
#include "train/step_agreement.hpp"

#include <gtest/gtest.h>

#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace train;

TEST(StepAgreement, SumsAndMaximaOfAllRanksComeLater) {
  comm::World& world = test_world();
  const std::int64_t ranks = world.size(), rank = world.rank();
  StepAgreement agreement(world);
  for (int step = 0; step < 3; ++step) {
    StepFacts own;
    own.valid_labels = 1000 + rank;
    own.failed_ranks = rank == 1 ? 1 : 0;
    own.stop = {.max_hours = 1, .signal = rank, .file = step};
    own.losses.add(0.25 * static_cast<double>(rank + step));
    own.fp8 = {.saturated = 2, .zero_scales = rank};
    own.memory_bytes = std::int64_t{1} << (40 + rank);
    own.gpu_process = -rank;
    own.step_microseconds = 7 * rank;
    own.counts.documents = 3 + rank;
    own.counts.lengths.documents.front() = ranks - rank;
    own.counts.lengths.documents.back() = rank;
    own.busy_microseconds = 10 + rank;
    own.busiest = RankTime(rank == (step + 1) % ranks ? 3600.25 : 0.001, static_cast<int>(rank));
    agreement.start(own);
    world.barrier();  // whatever a step does meanwhile
    StepFacts all = agreement.take();
    const std::int64_t sum = ranks * (ranks - 1) / 2;
    EXPECT_EQ(all.valid_labels, 1000 * ranks + sum);
    EXPECT_EQ(all.failed_ranks, ranks > 1 ? 1 : 0);
    EXPECT_EQ(all.stop.max_hours, ranks);
    EXPECT_EQ(all.stop.signal, sum);
    EXPECT_EQ(all.stop.file, step * ranks);
    EXPECT_EQ(all.losses.value(), 0.25 * static_cast<double>(sum + step * ranks));
    EXPECT_EQ(all.fp8.saturated, 2 * ranks);
    EXPECT_EQ(all.fp8.zero_scales, sum);
    EXPECT_EQ(all.memory_bytes, std::int64_t{1} << (40 + ranks - 1));
    EXPECT_EQ(all.gpu_process, 0);
    EXPECT_EQ(all.step_microseconds, 7 * (ranks - 1));
    EXPECT_EQ(all.counts.documents, 2 + ranks);
    EXPECT_EQ(all.counts.lengths.documents.front(), ranks);
    EXPECT_EQ(all.counts.lengths.documents.back(), ranks - 1);
    EXPECT_EQ(all.busy_microseconds, 10 * ranks + sum);
    EXPECT_EQ(all.busiest.rank(), (step + 1) % ranks);
    EXPECT_DOUBLE_EQ(all.busiest.seconds(), 3600.25);
  }
}

TEST(StepAgreement, IsTakenOnceForEachStart) {
  StepAgreement agreement(test_world());
  EXPECT_THROW(agreement.take(), Error);
  agreement.start({});
  EXPECT_THROW(agreement.start({}), Error);
  agreement.take();
}

}  // namespace
}  // namespace llampi::test
