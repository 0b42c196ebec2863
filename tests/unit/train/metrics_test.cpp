// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "llampi/core/error.hpp"
#include "support/full_disk.hpp"
#include "train/metrics.hpp"
#include "train/spilled_metrics.hpp"

namespace llampi::test {
namespace {

using namespace train;

namespace fs = std::filesystem;

class Metrics : public ::testing::Test {
 protected:
  Metrics() : folder_(fs::temp_directory_path() / fmt::format("llampi-metrics-{}", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~Metrics() override { fs::remove_all(folder_); }

  fs::path file() const { return folder_ / "metrics.jsonl"; }
  std::string content() const {
    std::ifstream in(file());
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  void write(const std::string& text) const { std::ofstream(file()) << text; }

  fs::path folder_;
};

// A file that may not grow stands for a disk that is full.
TEST_F(Metrics, LinesWithoutRoomStayInMemory) {
  MetricsFile metrics(file(), 0);
  EXPECT_EQ(metrics.append("first\n"), "");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit narrow{8, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &narrow), 0);
  const bool written = metrics.append("second\n").empty() || metrics.append("third\n").empty();
  EXPECT_THROW(metrics.sync(), UserError);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(written);
  EXPECT_EQ(metrics.unwritten(), "second\nthird\n");
  metrics.sync();
  EXPECT_EQ(metrics.unwritten(), "");
  EXPECT_EQ(metrics.append("fourth\n"), "");
  EXPECT_EQ(content(), "first\nsecond\nthird\nfourth\n");
}

TEST_F(Metrics, ALinkStaysOne) {
  const fs::path target = folder_ / "elsewhere.jsonl";
  std::ofstream(target) << "";
  fs::create_symlink(target.filename(), file());
  const std::string one = "{\"step\": 1, \"loss\": 5}\n";
  EXPECT_EQ(MetricsFile(file(), 0).append(one), "");
  EXPECT_TRUE(fs::is_symlink(file()));
  write("no line of a step\n" + one);
  const MetricsFile cut(file(), 1);
  EXPECT_TRUE(fs::is_symlink(file()));
  EXPECT_EQ(content(), one);
}

// Lines that are only beside a checkpoint in checkpoint.fallback_dir return when the run continues from it.
TEST_F(Metrics, LinesOfTheFallbackFolderReturn) {
  const fs::path fallback = folder_ / "fallback";
  fs::create_directories(fallback);
  const auto line = [](int step, const char* key, int value) {
    return fmt::format("{{\"step\": {}, \"{}\": {}}}\n", step, key, value);
  };
  const std::string one = line(1, "loss", 5), two = line(2, "loss", 4), evaluation = line(2, "eval_loss", 4),
                    three = line(3, "loss", 3);
  write(one + two);
  const auto spill = [&](int step, const std::string& lines) {
    std::ofstream(spilled_metrics(fallback, step)) << lines;
  };
  spill(1, one);
  spill(3, line(2, "loss", 9) + evaluation + three);
  std::ofstream(fallback / "metrics-to-2.jsonl") << "of somebody else";
  MetricsFile metrics(file(), 2);
  metrics.restore(fallback, 2, Log());
  EXPECT_EQ(content(), one + two + evaluation);
  EXPECT_FALSE(metrics.ends_with_step(2)) << "the evaluation is done";
  ASSERT_EQ(list_spilled_metrics(fallback).size(), 1U);
  MetricsFile again(file(), 3);
  again.restore(fallback, 3, Log());
  EXPECT_EQ(content(), one + two + evaluation + three);
  EXPECT_TRUE(again.ends_with_step(3));
  EXPECT_TRUE(list_spilled_metrics(fallback).empty());
  EXPECT_TRUE(fs::exists(fallback / "metrics-to-2.jsonl"));
}

TEST_F(Metrics, LinesOfTheFallbackFolderStayThereWhereThereIsStillNoRoom) {
  const std::string line = "{\"step\": 1, \"loss\": 2}\n";
  const fs::path spilled = spilled_metrics(folder_, 1);
  std::ofstream(spilled) << line;
  MetricsFile metrics(file(), 1);
  std::string warning;
  {
    const FullDisk full;
    metrics.restore(folder_, 1, Log([&](const std::string& text) { warning = text; }));
  }
  EXPECT_NE(warning.find("stay there"), std::string::npos) << warning;
  EXPECT_TRUE(fs::exists(spilled));
  EXPECT_EQ(metrics.unwritten(), line) << "of the next such file";
}

TEST_F(Metrics, AStepIsOneJsonObjectWithTheKeysOfTheContract) {
  const auto json = nlohmann::json::parse(
      to_json({.step = 3, .loss = 1.23456789012, .grad_norm = 2, .lr = 1e-3, .tokens = 5}));
  for (const auto* key : {"step", "loss", "grad_norm", "lr", "tokens", "tokens_seen", "step_seconds",
                          "data_seconds", "tokens_per_second", "tokens_per_second_per_rank", "mfu",
                          "memory_bytes", "checkpoint_stall_seconds", "time"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json.size(), 14U);
  EXPECT_EQ(json["loss"].get<double>(), 1.23456789) << "nine significant digits";
  EXPECT_TRUE(json["mfu"].is_null());
}

TEST_F(Metrics, AStepOfSeveralRanksNamesTheSlowest) {
  const auto json = nlohmann::json::parse(to_json({.slowest = SlowestRank{3, 0.25, 0.125}}));
  EXPECT_EQ(json["slowest_rank"], 3);
  EXPECT_EQ(json["slowest_rank_seconds"], 0.25);
  EXPECT_EQ(json["mean_rank_seconds"], 0.125);
}

TEST_F(Metrics, ValuesThatAreNotFiniteAreNull) {
  const auto json = nlohmann::json::parse(to_json({.loss = std::numeric_limits<double>::quiet_NaN(),
                                                   .grad_norm = std::numeric_limits<double>::infinity()}));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
}

TEST_F(Metrics, OpeningCutsBackToTheStep) {
  write("{\"step\": 1}\n{\"step\": 1, \"eval_loss\": 2}\n{\"step\": 2}\n{\"step\": 3}\n");
  MetricsFile metrics(file(), 2);
  metrics.append("{\"step\": 3, \"again\": true}\n");
  EXPECT_EQ(
      content(),
      "{\"step\": 1}\n{\"step\": 1, \"eval_loss\": 2}\n{\"step\": 2}\n{\"step\": 3, \"again\": true}\n");
}

TEST_F(Metrics, ATornLastLineIsDropped) {
  for (const auto* torn : {"{\"step\": 2", "{\"step\": 2, \"lo\n", "{\"step\": 2}"}) {
    write(std::string("{\"step\": 1}\n") + torn);
    MetricsFile metrics(file(), 2);
    EXPECT_EQ(content(), "{\"step\": 1}\n") << torn;
  }
}

TEST_F(Metrics, MalformedLinesBeforeOthersAreRemovedWithAWarning) {
  write("{\"step\": 1}\n{\"step\": 2, \"lo\n\n{\"step\": 3, \"loss\": 1}\n{\"step\": 4");
  std::vector<std::string> lines;
  const MetricsFile metrics(file(), 3, Log([&](const std::string& line) { lines.push_back(line); }));
  EXPECT_EQ(content(), "{\"step\": 1}\n{\"step\": 3, \"loss\": 1}\n");
  EXPECT_TRUE(metrics.ends_with_step(3));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0], "warning: " + file().string() +
                          " had 2 malformed lines (the first was line 2): removed; the other lines are kept");
}

// /proc/self/mem can be opened, and reading it at offset 0 fails with EIO, as on a failing disk.
TEST_F(Metrics, AFileThatCannotBeReadIsNotReplaced) {
  fs::create_directory(file());
  EXPECT_THROW(MetricsFile(file(), 2), UserError);
  EXPECT_TRUE(fs::is_directory(file()));
  fs::remove(file());
  fs::create_symlink("/proc/self/mem", file());
  EXPECT_THROW(MetricsFile(file(), 2), Error);
  EXPECT_TRUE(fs::is_symlink(file()));
  fs::remove(file());
  fs::create_symlink("metrics.jsonl", file());  // a link to itself
  EXPECT_THROW(MetricsFile(file(), 2), UserError);
  EXPECT_TRUE(fs::is_symlink(file()));
}

TEST_F(Metrics, AFolderThatCannotBeWrittenIsTheUsersMistake) {
  write("a file, no folder");
  EXPECT_THROW(MetricsFile(file() / "metrics.jsonl", 0), UserError);
}

}  // namespace
}  // namespace llampi::test
