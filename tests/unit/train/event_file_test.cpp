// SPDX-License-Identifier: Apache-2.0
// The bytes of TensorBoard's event files. That TensorBoard reads them is shown in tests/system/watching.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "llampi/core/error.hpp"
#include "support/files.hpp"
#include "train/event_file.hpp"

namespace llampi::test {
namespace {

using namespace train;

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char c : bytes) text += fmt::format("{:02x}", c);
  return text;
}

/// The messages of a file whose lengths and checksums are right.
std::vector<std::string> messages_in(const std::string& file) {
  std::vector<std::string> messages;
  for (std::size_t at = 0; at < file.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, file.data() + at, sizeof length);
    const std::string message = file.substr(at + 12, length), record = tf_record(message);
    EXPECT_EQ(hex(file.substr(at, record.size())), hex(record));
    at += record.size();
    messages.push_back(message);
  }
  return messages;
}

constexpr const char* kLine =
    R"({"step": 300, "loss": 1.5, "grad_norm": null, "lr": 0.25, "mfu": null, "tokens": 7, "time": 2.0})";

TEST(EventFile, HasTheChecksumsOfTheStandard) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU) << "RFC 3720, B.4";
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string ascending;
  for (char c = 0; c < 32; ++c) ascending += c;
  EXPECT_EQ(crc32c(ascending), 0x46dd794eU);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
}

// What tensorboard 2.21 writes: EventFileWriter's RecordWriter, and SerializeToString() of these events.
TEST(EventFile, HasTheBytesOfTensorBoardsOwnWriter) {
  EXPECT_EQ(hex(tf_record("abc")), "0300000000000000b099490e6162636e57f121");
  EXPECT_EQ(hex(first_event(1.5)), "09000000000000f83f1a0d627261696e2e4576656e743a32");
  EXPECT_EQ(hex(restart_event(1.5)), "09000000000000f83f3a020801");
  EXPECT_EQ(hex(scalars_event(2.0, 300, {{"train/loss", 1.5}, {"a", -2}})),
            "09000000000000004010ac022a1d0a110a0a747261696e2f6c6f7373150000c03f0a080a01611500"
            "0000c0");
}

TEST(EventFile, TakesTheCurvesOfALine) {
  const auto scalars = scalars_of(kLine);
  ASSERT_EQ(scalars.size(), 3U) << "not tokens, nor mfu, which is not known";
  EXPECT_EQ(scalars[0].tag, "train/loss");
  EXPECT_EQ(scalars[0].value, 1.5);
  EXPECT_EQ(scalars[1].tag, "train/learning_rate");
  EXPECT_EQ(scalars[2].tag, "train/grad_norm");
  EXPECT_TRUE(std::isnan(scalars[2].value)) << "it was not finite";
  EXPECT_THAT(scalars_of(R"({"step": 3, "lo)"), IsEmpty());
  EXPECT_THAT(scalars_of("[]"), IsEmpty());
}

TEST(EventFile, SaysWhatTheMetricsSayAndNoMore) {
  const TemporaryFolder folder, run;
  const fs::path metrics = run / "metrics.jsonl";
  write_text(metrics, "");
  const std::string first = std::string(kLine) + "\n",
                    second = R"({"step": 301, "eval_loss": 2, "eval_losses": {"a/b.h5": 1.5}, "time": 3})";
  {
    EventFile events(folder.path(), metrics);
    events.append(first);
    events.append(R"({"step": 302, "loss": 9, "time": 4})");
  }
  ASSERT_EQ(names_in(folder.path()).size(), 1U);
  const std::string before = names_in(folder.path())[0];
  EXPECT_THAT(before, StartsWith("events.out.tfevents."));
  EXPECT_THAT(before, EndsWith(".llampi"));
  write_text(folder / "events.out.tfevents.1.of-another-program", "kept");

  write_text(metrics, first);  // it was cut back
  EventFile continued(folder.path(), metrics);
  continued.append(second);
  const auto names = names_in(folder.path());
  ASSERT_EQ(names.size(), 3U);
  EXPECT_EQ(names[0], "events.out.tfevents.1.of-another-program");
  EXPECT_EQ(read_text(folder / names[0]), "kept");
  EXPECT_EQ(names[1], before);
  EXPECT_EQ(read_text(folder / before), "");
  EXPECT_GT(names[2], before) << "TensorBoard reads in the order of names";
  const auto messages = messages_in(read_text(folder / names[2]));
  ASSERT_EQ(messages.size(), 4U);
  EXPECT_THAT(messages[0], EndsWith("brain.Event:2"));
  EXPECT_EQ(messages[2], scalars_event(2.0, 300, scalars_of(kLine)));
  EXPECT_EQ(messages[3], scalars_event(3.0, 301, {{"eval/loss", 2}, {"eval/loss/a/b.h5", 1.5}}));

  const EventFile third(folder.path(), metrics);
  EXPECT_EQ(names_in(folder.path()).size(), 3U) << "files that were emptied before do not pile up";
}

TEST(EventFile, HasAllLinesOfALongRun) {
  const TemporaryFolder folder, run;
  constexpr int kSteps = 5000;
  std::string lines;
  for (int i = 1; i <= kSteps; ++i)
    lines += fmt::format(R"({{"step": {}, "loss": 2, "lr": 1, "time": 3}})", i) + "\n";
  write_text(run / "metrics.jsonl", lines);
  const EventFile events(folder.path(), run / "metrics.jsonl");
  const auto messages = messages_in(read_text(folder / names_in(folder.path())[0]));
  ASSERT_EQ(messages.size(), 2U + kSteps);
  for (int i = 1; i <= kSteps; ++i)
    EXPECT_EQ(messages[1 + i], scalars_event(3, i, {{"train/loss", 2}, {"train/learning_rate", 1}}));
}

TEST(EventFile, NeedsMetricsThatCanBeRead) {
  const TemporaryFolder folder, run;
  write_text(run / "metrics.jsonl", std::string(kLine) + "\n");
  { const EventFile events(folder.path(), run / "metrics.jsonl"); }
  const auto before = names_in(folder.path());
  const std::string text = read_text(folder / before[0]);
  fs::remove(run / "metrics.jsonl");
  for (const auto& unreadable : {run / "metrics.jsonl", run.path(), fs::path("/proc/self/mem")}) {
    EXPECT_THROW(EventFile(folder.path(), unreadable), Error) << unreadable;
    EXPECT_EQ(names_in(folder.path()), before);
    EXPECT_EQ(read_text(folder / before[0]), text) << "the older file is kept";
  }
}

// A file that may not grow stands for a disk that is full.
TEST(EventFile, WaitsForRoom) {
  const TemporaryFolder folder, run;
  write_text(run / "metrics.jsonl", "");
  EventFile events(folder.path(), run / "metrics.jsonl");
  const fs::path file = folder / names_in(folder.path())[0];
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit narrow{fs::file_size(file) + 5, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &narrow), 0);
  events.append(kLine);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  events.append(kLine);
  EXPECT_EQ(messages_in(read_text(file)).size(), 4U);
}

}  // namespace
}  // namespace llampi::test
