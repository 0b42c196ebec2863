// SPDX-License-Identifier: Apache-2.0
// Files of traces. What is in them is tested in tests/ranks/train.
#include "train/trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/files.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::UnorderedElementsAre;

TEST(TraceFiles, OfAnEarlierJobWithMoreRanksAreRemoved) {
  const TemporaryFolder folder;
  for (int rank = 0; rank < 8; ++rank) write_text(trace_file(folder.path(), rank), "{}");
  write_text(folder / "notes.json", "{}");
  remove_traces_of_more_ranks(folder.path(), 3);
  EXPECT_THAT(names_in(folder.path()),
              UnorderedElementsAre("notes.json", "rank-00000.json", "rank-00001.json", "rank-00002.json"));
  remove_traces_of_more_ranks(folder / "none", 3);
}

}  // namespace
}  // namespace llampi::test
