// SPDX-License-Identifier: Apache-2.0
// What is in the page. How a browser draws it is shown in tests/system/watching.
#include "llampi/report/page.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_NEAR(steps["values"]["loss"]["mean"][0].get<double>(), (2 + 2 * 4.123456789012) / 3, 1e-8);
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
