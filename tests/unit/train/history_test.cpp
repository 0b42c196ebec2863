// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.hpp"
#include "train/history.hpp"

namespace llampi::test {
namespace {

using namespace train;

TEST(History, GrowsOverJobs) {
  const TemporaryFolder folder;
  HistoryFile(folder / "history.jsonl").append(end_json({3, "stopped"}, 1.5));
  HistoryFile(folder / "history.jsonl")
      .append(checkpoint_json(4, "checkpoints/x.h5", CheckpointContent::weights, 0.25, 2));
  HistoryFile(folder / "history.jsonl").append(end_json({4, "failed", "not_finite"}, 3));
  EXPECT_EQ(
      read_text(folder / "history.jsonl"),
      "{\"event\":\"end\",\"time\":1.5,\"step\":3,\"outcome\":\"stopped\"}\n"
      "{\"event\":\"checkpoint\",\"time\":2.0,\"step\":4,\"file\":\"checkpoints/x.h5\",\"content\":\"weights\",\"seconds\":0.25}\n"
      "{\"event\":\"end\",\"time\":3.0,\"step\":4,\"outcome\":\"failed\",\"reason\":\"not_finite\"}\n");
}

TEST(History, ATornLineStaysALineOfItsOwn) {
  const TemporaryFolder folder;
  write_text(folder / "history.jsonl", "{\"event\":\"st");
  HistoryFile(folder / "history.jsonl").append("{}");
  EXPECT_EQ(read_text(folder / "history.jsonl"), "{\"event\":\"st\n{}\n");
}

TEST(History, TellsOfTheCheckpointsSinceTheRunBegan) {
  const TemporaryFolder folder;
  const auto file = folder / "history.jsonl";
  EXPECT_TRUE(saved_checkpoints(folder.path()).empty());
  const auto append = [&](const std::string& line) { HistoryFile(file).append(line); };
  append(start_json({.step = 0}, 1));
  append(checkpoint_json(4, "checkpoints/a.h5", CheckpointContent::all, 0.25, 2));
  append("{\"event\": \"checkpoint\"}\n{\"event\": 3}\n[]\n{\"ev");
  append(checkpoint_json(8, "/elsewhere/b.h5", CheckpointContent::all, 0.25, 3.5));
  append(start_json({.step = 8}, 4));
  const auto saved = saved_checkpoints(folder.path());
  ASSERT_EQ(saved.size(), 2);
  EXPECT_EQ(saved[0].file, folder / "checkpoints/a.h5");
  EXPECT_EQ(saved[1].step, 8);
  EXPECT_EQ(saved[1].file, "/elsewhere/b.h5");
  EXPECT_EQ(saved[1].time, 3.5);
  append(start_json({.step = 0}, 5));
  EXPECT_TRUE(saved_checkpoints(folder.path()).empty()) << "of a run before";
}

TEST(History, AStartSaysWhatTheRunIs) {
  const auto line = nlohmann::json::parse(start_json({.step = 5,
                                                      .total_steps = 9,
                                                      .ranks = 2,
                                                      .device = "cpu: \xff",
                                                      .planned_bytes = {{"device", 7}},
                                                      .peak_bytes = {{"logits", 3}}},
                                                     1.0));
  EXPECT_EQ(line["event"], "start");
  EXPECT_EQ(line["step"], 5);
  EXPECT_EQ(line["total_steps"], 9);
  EXPECT_EQ(line["planned_bytes"]["device"], 7);
  EXPECT_EQ(line["peak_bytes"]["logits"], 3);
}

}  // namespace
}  // namespace llampi::test
