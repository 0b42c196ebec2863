// SPDX-License-Identifier: Apache-2.0
// The ring of what a rank did last.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "llampi/health/flight_record.hpp"

namespace llampi::test {
namespace {

TEST(FlightRecord, KeepsTheLastOperations) {
  health::FlightRecord record;
  EXPECT_TRUE(record.entries().empty());
  constexpr std::uint64_t kCount = health::FlightRecord::kEntries + 10;
  for (std::uint64_t i = 1; i <= kCount; ++i) {
    record.begin_step(static_cast<std::int64_t>(i / 100));
    EXPECT_EQ(record.issue({"unshard", 2, static_cast<std::int64_t>(i), 1}), i);
    if (i % 2 == 0) record.complete(i);
  }
  record.complete(1);  // long overwritten
  const auto entries = record.entries();
  ASSERT_EQ(entries.size(), health::FlightRecord::kEntries);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    EXPECT_EQ(entry.sequence, 11 + i);
    EXPECT_EQ(entry.what.bytes, static_cast<std::int64_t>(entry.sequence));
    EXPECT_EQ(entry.step, static_cast<std::int64_t>(entry.sequence / 100));
    EXPECT_EQ(entry.completed > 0, entry.sequence % 2 == 0);
    EXPECT_GT(entry.issued, 0);
  }
  record.end_step();
  for (const auto& entry : record.entries()) EXPECT_GT(entry.completed, 0);
}

TEST(FlightRecord, AddsUpHowLongTheRankWaitsForOthers) {
  health::FlightRecord record;
  const auto sleep = [](int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  };
  sleep(20);
  EXPECT_EQ(record.waited_seconds(), 0);
  const auto first = record.issue({"unshard", 0, 8, 0}), second = record.issue({"reduce", 0, 8, 0});
  sleep(20);
  EXPECT_EQ(record.waited_seconds(), 0) << "it was issued, and nothing waits for it";
  record.wait(first);
  sleep(20);
  EXPECT_GE(record.waited_seconds(), 0.02) << "also while it waits";
  record.wait(second);
  sleep(20);
  record.act("forward");
  const double waited = record.waited_seconds();
  EXPECT_GE(waited, 0.04);
  sleep(20);
  record.wait_for_device();
  sleep(20);
  record.act("");
  EXPECT_EQ(record.waited_seconds(), waited) << "what a device waits for is not known";
  {
    const health::FlightScope scope(record, {"agreement"});
    sleep(20);
  }
  EXPECT_GE(record.waited_seconds(), waited + 0.02);
}

TEST(FlightRecord, SaysWhereTheRankIs) {
  health::FlightRecord record;
  record.begin_step(7);
  record.act("forward", 3, 1);
  auto now = record.position();
  EXPECT_EQ(now.waiting, health::Waiting::no);
  EXPECT_STREQ(now.doing, "forward");
  EXPECT_EQ(now.doing_name, 3);
  EXPECT_EQ(now.micro_batch, 1);
  EXPECT_EQ(now.step, 7);

  const auto first = record.issue({"unshard", 0, 8, 0});
  record.issue({"unshard", 1, 8, 0});
  record.wait(first);
  now = record.position();
  EXPECT_EQ(now.waiting, health::Waiting::operation);
  EXPECT_EQ(now.at.sequence, first) << "not the last that was issued, but the one that is waited for";
  EXPECT_EQ(now.issued, 2U);
  record.act("backward");
  now = record.position();
  EXPECT_EQ(now.waiting, health::Waiting::no);
  EXPECT_EQ(now.at.sequence, 2U);
  record.wait_for_device();
  EXPECT_EQ(record.position().waiting, health::Waiting::device);
  {
    const health::FlightPhase phase(record, "saves a checkpoint");
    const health::FlightScope scope(record, {"agreement"});
    EXPECT_EQ(record.position().at.sequence, 3U);
    EXPECT_STREQ(record.position().phase, "saves a checkpoint");
  }
  EXPECT_EQ(record.position().phase, nullptr);
  EXPECT_GT(record.entries().back().completed, 0);
}

TEST(FlightRecord, EverythingIsMovement) {
  health::FlightRecord record;
  std::set<std::uint64_t> seen = {record.position().movement};
  const auto moved = [&] { return seen.insert(record.position().movement).second; };
  record.set_phase("starts");
  EXPECT_TRUE(moved());
  record.begin_step(1);
  EXPECT_TRUE(moved());
  record.act("forward");
  EXPECT_TRUE(moved());
  record.issue({"unshard"});
  EXPECT_TRUE(moved());
  record.wait(1);
  EXPECT_TRUE(moved());
  record.complete(1);
  EXPECT_TRUE(moved());
  record.end_step();
  EXPECT_TRUE(moved());
  EXPECT_FALSE(moved());
}

TEST(FlightRecord, HashesTellSequencesApart) {
  health::FlightRecord a, b;
  for (int i = 0; i < 5000; ++i) {
    a.issue({"unshard", i % 3, 64, i});
    b.issue({i == 3000 ? "reduce" : "unshard", i % 3, 64, 7});  // the micro-batch does not count
  }
  const auto in_a = a.entries(), in_b = b.entries();
  for (std::size_t i = 0; i < in_a.size(); ++i) EXPECT_NE(in_a[i].hash, in_b[i].hash);
  // 5000 = 78 * 64 + 8 = 9 * 512 + 392 = 1 * 4096 + 904; the next mark is at 32768.
  const auto marks_a = a.position().marks, marks_b = b.position().marks;
  const std::uint64_t expected[] = {4992, 4928, 4608, 4096, 4096, 0, 0, 0, 0, 0, 0, 0};
  for (std::size_t level = 0; level < marks_a.size(); ++level) {
    EXPECT_EQ(marks_a[level].sequence, expected[level]);
    EXPECT_EQ(marks_b[level].sequence, expected[level]);
    EXPECT_EQ(marks_a[level].hash == marks_b[level].hash, expected[level] == 0);
  }
  health::FlightRecord c;
  for (int i = 0; i < 5000; ++i) c.issue({"unshard", i % 3, 64, 0});
  EXPECT_EQ(c.position().marks[4].hash, marks_a[4].hash);
}

TEST(FlightRecord, CanBeReadWhileItIsWritten) {
  health::FlightRecord record;
  record.set_names({"unit"});
  std::atomic<bool> done = false;
  std::thread reader([&] {
    std::uint64_t last = 0;
    while (!done) {
      const auto position = record.position();
      EXPECT_GE(position.issued, last);
      last = position.issued;
      const auto entries = record.entries();
      for (std::size_t i = 1; i < entries.size(); ++i)
        ASSERT_EQ(entries[i].sequence, entries[i - 1].sequence + 1);
      EXPECT_EQ(record.names().size(), 1U);
    }
  });
  for (int i = 0; i < 20000; ++i) {
    record.act("forward");
    const health::FlightScope scope(record, {"unshard", 0, i});
  }
  done = true;
  reader.join();
}

}  // namespace
}  // namespace llampi::test
