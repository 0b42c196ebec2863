// SPDX-License-Identifier: Apache-2.0
#include "llampi/report/trace_times.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/files.hpp"

namespace llampi::test {
namespace {

using namespace report;
using nlohmann::json;

json event(const char* operation, double begin, double end, int step = 1) {
  return {{"name", operation}, {"cat", operation}, {"ph", "X"},          {"pid", 3},
          {"tid", 0},          {"ts", begin},      {"dur", end - begin}, {"args", {{"step", step}}}};
}

/// Of an operation between ranks.
json collective(const char* operation, double begin, double end) {
  json made = event(operation, begin, end);
  made["args"]["ranks"] = {2, 3};
  return made;
}

std::string trace_of(const std::vector<json>& events) { return json{{"traceEvents", events}}.dump(); }

TEST(TraceTimes, CommunicationIsExposedWhereNothingComputesBesideIt) {
  const RankTimes times = trace_times(trace_of({
      {{"name", "process_name"}, {"ph", "M"}, {"pid", 3}},
      event("h2d", 0, 1e5),
      collective("unshard", 1e5, 4e5),
      event("forward", 2e5, 3e5),
      collective("unshard", 3.5e5, 6e5),  // of another unit, on the same stream or another
      event("backward", 5e5, 8e5),
      event("reshard", 8e5, 9e5),
      collective("reduce", 7e5, 10e5),
  }));
  EXPECT_EQ(times.rank, 3);
  EXPECT_EQ(times.steps, 1);
  EXPECT_DOUBLE_EQ(times.step, 1.0);
  EXPECT_DOUBLE_EQ(times.compute, 0.4);
  EXPECT_DOUBLE_EQ(times.communication, 0.8);
  EXPECT_DOUBLE_EQ(times.exposed, 0.5) << "0.1 to 0.2, 0.3 to 0.5, 0.8 to 1.0";
  EXPECT_DOUBLE_EQ(times.copies, 0.1);
  EXPECT_DOUBLE_EQ(times.operations.at("unshard"), 0.55);
  EXPECT_FALSE(times.operations.contains("reshard")) << "it takes no time";
}

TEST(TraceTimes, TakeAnyOperationThatHasRanksAsACollective) {
  const RankTimes times =
      trace_times(trace_of({collective("a later one", 0, 2e6), event("a computation", 3e6, 4e6)}));
  EXPECT_DOUBLE_EQ(times.communication, 2);
  EXPECT_DOUBLE_EQ(times.compute, 1);
}

TEST(TraceTimes, AreMeansOverSteps) {
  const RankTimes times =
      trace_times(trace_of({event("forward", 0, 2e6, 5), event("forward", 9e6, 13e6, 6)}));
  EXPECT_EQ(times.steps, 2);
  EXPECT_EQ(times.first_step, 5);
  EXPECT_EQ(times.last_step, 6);
  EXPECT_DOUBLE_EQ(times.step, 3);
  EXPECT_DOUBLE_EQ(times.compute, 3);
  EXPECT_DOUBLE_EQ(times.exposed, 0);
}

TEST(TraceTimes, OfFilesThatAreNoTracesAreLeftOut) {
  for (const std::string text : {"", "{", "[]", R"({"other": [{"ph": "X", "args": {"step": 1}}]})",
                                 R"({"traceEvents": [{"ph": "X", "args": {"step": 1}}])",
                                 R"({"traceEvents": 3})", R"({"traceEvents": [3, {"ph": "X"}, {"ph": 4}]})"})
    EXPECT_EQ(trace_times(text).steps, 0) << text;
  const TemporaryFolder folder;
  write_text(folder / "rank-00001.json", trace_of({event("forward", 0, 1)}));
  write_text(folder / "rank-00000.json", "{");
  std::filesystem::create_symlink("nowhere", folder / "rank-00002.json");
  std::filesystem::create_directory(folder / "rank-00003.json");
  for (int rank = 4; rank < 8; ++rank)
    write_text(folder / fmt::format("rank-{:05}.json", rank), trace_of({event("forward", 0, 1)}));
  write_text(folder / "notes.json", trace_of({event("forward", 0, 1)}));
  TraceTimes times = read_trace_times(find_traces(folder.path()));
  EXPECT_EQ(times.ranks.size(), 5U);
  EXPECT_EQ(times.left_out, "3 that cannot be read");
  times = read_trace_times(find_traces(folder / "none"));
  EXPECT_TRUE(times.ranks.empty());
  EXPECT_EQ(times.left_out, "");
}

TEST(TraceTimes, SayWhatIsNotRead) {
  const TemporaryFolder folder;
  for (int rank = 0; rank < 66; ++rank)
    write_text(folder / fmt::format("rank-{:05}.json", rank), trace_of({event("forward", 0, 1)}));
  std::filesystem::resize_file(folder / "rank-00063.json", (std::uintmax_t{256} << 20) + 1);
  const TraceTimes times = read_trace_times(find_traces(folder.path()));
  EXPECT_EQ(times.ranks.size(), 63U);
  EXPECT_EQ(times.left_out, "2 after the first 64, 1 larger than 256.00 MiB");
}

}  // namespace
}  // namespace llampi::test
