// SPDX-License-Identifier: Apache-2.0
// What is in the page. How a browser draws it is shown in tests/system/watching.
#include "llampi/report/page.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "support/files.hpp"

namespace llampi::test {
namespace {

using namespace report;

using ::testing::HasSubstr;
using ::testing::Not;

report::Run run_of(int steps) {
  report::Run run;
  run.folder = "runs/<a> & \"b\"";
  for (int i = 1; i <= steps; ++i) {
    run.steps.step.push_back(i);
    run.steps.time.push_back(1e9 + i);
    run.steps.tokens.push_back(10.0 * i);
    run.steps.values["loss"].push_back(i % 2 == 0 ? 2 : 4.123456789012);
  }
  return run;
}

nlohmann::json data_of(const std::string& page) {
  const std::string begin = R"(<script type="application/json" id="data">)", end = "</script>";
  const auto at = page.find(begin) + begin.size();
  return nlohmann::json::parse(page.substr(at, page.find(end, at) - at));
}

TEST(Page, HasTheValuesOfARunAsTheyAre) {
  report::Run run = run_of(3);
  run.steps.values["loss"][1] = std::numeric_limits<double>::quiet_NaN();
  const auto data = data_of(page(std::span(&run, 1), 0));
  const auto& steps = data["runs"][0]["steps"];
  EXPECT_EQ(steps["group"], 1);
  EXPECT_EQ(steps["step"], nlohmann::json({1, 2, 3}));
  EXPECT_EQ(steps["values"]["loss"]["mean"].dump(), "[4.12345679,null,4.12345679]");
  EXPECT_FALSE(steps["values"]["loss"].contains("low"));
}

TEST(Page, ThinsLongRuns) {
  const report::Run run = run_of(8001);
  const auto data = data_of(page(std::span(&run, 1), 0));
  const auto& steps = data["runs"][0]["steps"];
  EXPECT_EQ(steps["group"], 3);
  EXPECT_EQ(steps["step"].size(), 2667U);
  EXPECT_EQ(steps["step"].back(), 8001);
  EXPECT_EQ(steps["values"]["loss"]["low"][0], 2);
  EXPECT_EQ(steps["values"]["loss"]["mean"][0], 3.41564) << "of 4.12.., 2 and 4.12..";
}

TEST(Page, StaysSmall) {
  report::Run run = run_of(20000);
  for (const char* key : {"lr", "grad_norm", "tokens_per_second", "mfu", "step_seconds", "data_seconds",
                          "checkpoint_stall_seconds", "memory_bytes", "gpu_process_bytes"}) {
    for (int i = 0; i < 20000; ++i) run.steps.values[key].push_back(std::sqrt(i + 2));
  }
  run.history.push_back({HistoryEvent::Kind::start, 1e9, 0});
  for (int i = 1; i <= 20000; ++i) {
    run.evaluations.step.push_back(i);
    run.evaluations.time.push_back(1e9 + i);
    run.evaluations.tokens.push_back(i);
    run.evaluations.loss.push_back(i % 2);
    run.history.push_back({HistoryEvent::Kind::checkpoint, 1e9 + i, i, i % 2 == 0 ? 1.0 : 3.0});
  }
  const std::string text = page(std::span(&run, 1), 0);
  EXPECT_LT(text.size(), 1500000U);
  const auto data = data_of(text)["runs"][0];
  EXPECT_EQ(data["steps"]["values"]["mfu"]["mean"][0], 1.96636)
      << "of sqrt(2) to sqrt(6): fewer digits than values have";
  EXPECT_EQ(data["evaluations"]["group"], 20);
  EXPECT_EQ(data["evaluations"]["step"][0], 20);
  EXPECT_EQ(data["evaluations"]["loss"][0], 0.5);
  EXPECT_EQ(data["checkpoints"]["step"].size(), 1000U);
  EXPECT_EQ(data["checkpoints"]["step"].back(), 20000);
  EXPECT_EQ(data["jobs"].size(), 1U);
  EXPECT_EQ(data["jobs"][0]["checkpoints"], 20000);
  EXPECT_EQ(data["jobs"][0]["checkpoint_seconds"], 2);
}

TEST(Page, LetsNoTextOfARunBecomeMarkup) {
  report::Run run = run_of(1);
  run.folder = "runs/</title><script>alert(1)</script>/* page.js */";
  run.config["run.dir"] = "</script><!--\xff";
  const std::string text = page(std::span(&run, 1), 0);
  EXPECT_THAT(text, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(text, HasSubstr("<title>llampi report: runs/&lt;/title&gt;&lt;script&gt;"));
  EXPECT_EQ(data_of(text)["runs"][0]["name"], run.folder.string());
  EXPECT_EQ(data_of(text)["runs"][0]["config"]["run.dir"], "</script><!--\xef\xbf\xbd");
  EXPECT_THAT(text, HasSubstr("drawCharts()")) << "the script is there";
}

TEST(Page, IsKnownAgain) {
  const TemporaryFolder folder;
  const report::Run run = run_of(1);
  write_text(folder / "page.html", page(std::span(&run, 1), 0));
  write_text(folder / "other.html",
             "<!DOCTYPE html>\n<html><head><meta name=\"generator\" content=\"another program\">");
  EXPECT_TRUE(is_page(folder / "page.html"));
  EXPECT_FALSE(is_page(folder / "other.html"));
  EXPECT_FALSE(is_page(folder / "none.html"));
}

}  // namespace
}  // namespace llampi::test
