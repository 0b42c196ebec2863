// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <limits>
#include <regex>
#include <sstream>
#include <string>

#include "llampi/io/temporary_file.hpp"
#include "support/files.hpp"
#include "train/prometheus.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Standing standing() {
  return {.step = {.step = 12, .loss = 2.5, .grad_norm = 1, .lr = 0.001, .tokens_seen = 4096, .time = 1.75e9},
          .total_steps = 100};
}

TEST(Prometheus, LinesAreOfTheTextFormat) {
  auto all = standing();
  all.eval_loss = 2.75;
  all.saved_step = 10;
  all.step.loss_scale = 65536;
  all.step.mfu = 0.5;
  all.step.fp8 = {.saturated = 3, .zero_scales = 4};
  std::istringstream text(prometheus_text(all, "runs/a"));
  const std::regex help("# HELP (llampi_[a-z0-9_]+) .+\\."),
      type("# TYPE (llampi_[a-z0-9_]+) (gauge|counter)"),
      sample("(llampi_[a-z0-9_]+)\\{run=\"runs/a\"\\} ([-+0-9.e]+|NaN)");
  int metrics = 0;
  for (std::string one, two, three; std::getline(text, one); ++metrics) {
    std::getline(text, two);
    std::getline(text, three);
    std::smatch helped, typed, sampled;
    ASSERT_TRUE(std::regex_match(one, helped, help)) << one;
    ASSERT_TRUE(std::regex_match(two, typed, type)) << two;
    ASSERT_TRUE(std::regex_match(three, sampled, sample)) << three;
    EXPECT_EQ(helped[1], typed[1]);
    EXPECT_EQ(helped[1], sampled[1]);
    EXPECT_EQ(typed[2] == "counter", helped[1].str().ends_with("_total"));
  }
  EXPECT_EQ(metrics, 17);
  EXPECT_THAT(prometheus_text(all, "a"), HasSubstr("\nllampi_eval_loss{run=\"a\"} 2.75\n"));
  EXPECT_THAT(prometheus_text(all, "a"),
              HasSubstr("\nllampi_step_timestamp_seconds{run=\"a\"} 1750000000\n"));
}

TEST(Prometheus, SaysWhatIsNotFiniteAndLeavesOutWhatIsNotKnown) {
  auto lost = standing();
  lost.step.loss = std::numeric_limits<double>::quiet_NaN();
  lost.step.grad_norm = std::numeric_limits<double>::infinity();
  const std::string text = prometheus_text(lost, "a \"b\"\\\n");
  EXPECT_THAT(text, HasSubstr("\nllampi_loss{run=\"a \\\"b\\\"\\\\\\n\"} NaN\n"));
  EXPECT_THAT(text, HasSubstr("} +Inf\n"));
  EXPECT_THAT(text, Not(HasSubstr("llampi_mfu")));
  EXPECT_THAT(text, Not(HasSubstr("llampi_eval_loss")));
  EXPECT_THAT(text, HasSubstr("\nllampi_checkpoint_step{")) << "0 is known, too";
}

TEST(Prometheus, AFileIsReplacedAsAWhole) {
  const TemporaryFolder folder;
  PrometheusFile file(folder / "a.prom", "a", Log());
  EXPECT_THAT(names_in(folder.path()), ElementsAre()) << "nothing is known yet";
  file.write(standing());
  auto later = standing();
  later.step.step = 13;
  PrometheusFile(folder / "a.prom", "a", Log()).write(later);  // of the next job
  EXPECT_EQ(read_text(folder / "a.prom"), prometheus_text(later, "a"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a.prom"));
}

TEST(Prometheus, AJobThatIsKilledLeavesNothingForLong) {
  const TemporaryFolder folder;
  if (::fork() == 0) {
    write_text(io::temporary_beside(folder / "a.prom"), "a part");
    ::_exit(0);
  }
  ::wait(nullptr);
  ASSERT_EQ(names_in(folder.path()).size(), 1U);
  const PrometheusFile next(folder / "a.prom", "a", Log());
  EXPECT_THAT(names_in(folder.path()), ElementsAre());
}

TEST(Prometheus, AFileOfAnotherKindIsNotReplaced) {
  const TemporaryFolder folder;
  write_text(folder / "notes", "mine\n");
  EXPECT_EQ(user_error([&] { PrometheusFile(folder / "notes", "a", Log()); }),
            "log.prometheus = " + (folder / "notes").string() +
                " already exists and is not a file that log.prometheus wrote: name another file");
  EXPECT_EQ(read_text(folder / "notes"), "mine\n");
  EXPECT_THAT(user_error([&] { PrometheusFile(folder.path(), "a", Log()); }),
              HasSubstr(" is a folder: give the name of a file"));
  EXPECT_THAT(user_error([&] { PrometheusFile(folder / "none" / "a.prom", "a", Log()); }),
              HasSubstr("there is no folder"));
}

TEST(Prometheus, AFailureIsToldOnceAndEndsNothing) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "later");
  std::vector<std::string> lines;
  const Log log([&](const std::string& line) { lines.push_back(line); });
  PrometheusFile file(folder / "later" / "a.prom", "a", log);
  std::filesystem::remove(folder / "later");
  file.write(standing());
  file.write(standing());
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], StartsWith("warning: log.prometheus is not up to date: "));
}

}  // namespace
}  // namespace llampi::test
