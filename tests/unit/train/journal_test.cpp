// SPDX-License-Identifier: Apache-2.0
// What a run tells of its steps, on the console and for Prometheus.
#include "train/journal.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "support/files.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::ElementsAre;
using ::testing::EndsWith;

struct JournalFiles : ::testing::Test {
  JournalFiles() { config.log.prometheus = file.string(); }
  void show(std::int64_t step, double time, double step_seconds = 1, double loss = 2) {
    journal.show({.step = step, .loss = loss, .step_seconds = step_seconds, .time = time});
  }
  /// In the file for Prometheus.
  std::string value(const std::string& name) const {
    const std::string text = read_text(file), begin = "\n" + name + "{run=\"runs/default\"} ";
    const auto at = text.find(begin);
    return at == text.npos ? "" : text.substr(at + begin.size(), text.find('\n', at + 1) - at - begin.size());
  }

  const TemporaryFolder folder;
  const std::filesystem::path file = folder / "a.prom";
  Config config;
  std::vector<std::string> lines;
  const Log log{[this](const std::string& line) { lines.push_back(line); }};
  Journal journal{config, log};
};

TEST_F(JournalFiles, ThatPrometheusReadsAreNeverOld) {
  config.log.every = 1000;
  journal.open_prometheus();
  journal.begin(0, 100);
  show(1, 100);
  EXPECT_EQ(value("llampi_step"), "1");
  show(2, 100.9);
  EXPECT_EQ(value("llampi_step"), "1") << "it need not be replaced for each step";
  show(3, 101);
  EXPECT_EQ(value("llampi_step"), "3");
  show(4, 101.1, 1, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(value("llampi_loss"), "NaN") << "the step may be the run's last";
}

TEST_F(JournalFiles, ThatPrometheusReadsHaveTheCheckpointOfTheStart) {
  journal.open_prometheus();
  journal.begin(0, 100);
  show(1, 100);
  EXPECT_EQ(value("llampi_checkpoint_step"), "0");
  journal.begin(40, 100);
  show(41, 200);
  EXPECT_EQ(value("llampi_checkpoint_step"), "40");
}

TEST_F(JournalFiles, AreNotNeededForTheTimeThatIsLeft) {
  config.log.prometheus.clear();
  journal.begin(40, 50);
  show(41, 100, 60);
  show(42, 101, 1);
  show(43, 104, 3);
  EXPECT_THAT(lines, ElementsAre(EndsWith("9m 00s left"), EndsWith("8s left"), EndsWith("14s left")))
      << "the first step takes longer than others";
}

}  // namespace
}  // namespace llampi::test
