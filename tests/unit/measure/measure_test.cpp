// SPDX-License-Identifier: Apache-2.0
// Results of measurements: written, read, compared, and turned into figures of a machine.
#include "llampi/measure/measure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llampi/core/error.hpp"

namespace llampi::test {
namespace {

using namespace measure;
using ::testing::HasSubstr;
using ::testing::Not;

Row product(std::int64_t side, double tflops) {
  Row row{.group = "product", .name = std::to_string(side), .unit = "TFLOP/s"};
  row.amounts = plan::amounts_of(device::op::Linear{.x = {nullptr, DType::float32, side, side},
                                                    .weight = {nullptr, DType::float32, side, side},
                                                    .y = {}},
                                 plan::AttentionKernels::native);
  row.amounts[plan::Term::kernels] = 0;
  row.seconds = row.amounts[plan::Term::product_float32] / tflops * 1e-12;
  return row;
}

Row collective(const std::string& name, double bytes, double seconds) {
  return {.group = "collective",
          .name = name,
          .seconds = seconds,
          .rate = bytes / seconds * 1e-9,
          .unit = "GB/s",
          .bus_rate = bytes / 2 / seconds * 1e-9};
}

Result result_of_two_ranks() {
  Result result{.device = "a CPU", .gpu = "cpu", .ranks = 2, .nodes = 1, .ranks_on_node = 2, .rows = {}};
  result.shape.threads = 1;
  // Half of the rate at 96: an edge of 32 of each of three sides.
  result.rows = {product(96, 0.1), product(96 * 99, 0.198),
                 // 3 microseconds, and half of the bytes at 5 GB/s
                 collective("all_gather small", 1e4, 4e-6), collective("reduce_scatter medium", 1e6, 1.03e-4),
                 collective("all_gather large", 1e8, 1.0003e-2),
                 collective("reduce_scatter large", 1e8, 1.0003e-2),
                 collective("all_reduce large", 1e8, 9e-2)};
  return result;
}

TEST(BenchResult, IsReadAsItWasWritten) {
  const Result result = result_of_two_ranks();
  const std::string text = to_json(result);
  EXPECT_EQ(to_json(from_json(text, "x.json")), text);
  for (const std::string bad : {"", "{}", "{\"llampi_bench\": 2}", "{\"llampi_bench\": 1}"}) {
    try {
      from_json(bad, "x.json");
      ADD_FAILURE() << bad;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.json is not a file that llampi bench --json has written"));
    }
  }
}

TEST(BenchResult, IsAcceptedOrRefusedWhateverIsChanged) {
  const std::string text = to_json(result_of_two_ranks());
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const char c : {'"', '{', '9', '-', '\xff'}) {
      std::string changed = text;
      changed[i] = c;
      try {
        from_json(changed, "x.json");
      } catch (const UserError&) {
        // As it should be: anything else ends the test.
      }
    }
  }
}

TEST(BenchResult, IsComparedRowByRow) {
  Result now = result_of_two_ranks();
  const Result then = now;
  now.rows[0].seconds /= 2;
  now.rows[1].name = "another";
  const std::string text = format_comparison(now, then);
  EXPECT_THAT(text, HasSubstr("  -50.0 % time, faster\n"));
  EXPECT_THAT(text, HasSubstr("  same time\n"));
  EXPECT_THAT(format_comparison(then, now), HasSubstr("  +100.0 % time, slower\n"));
  EXPECT_THAT(text, Not(HasSubstr("another")));
}

TEST(BenchResult, NamesWhatElseDiffers) {
  Result then = result_of_two_ranks(), now = then;
  EXPECT_THAT(format_comparison(now, then), Not(HasSubstr("not the same")));
  then.configuration = {{"data.seq_len", "32"}, {"fsdp.wrap", ""}, {"only.then", "1"}};
  now.configuration = {{"data.seq_len", "64"}, {"fsdp.wrap", "block"}, {"only.now", "1"}};
  now.ranks = 4;
  EXPECT_THAT(format_comparison(now, then),
              ::testing::StartsWith("not the same: data.seq_len was 32, and is 64\n"
                                    "not the same: fsdp.wrap was not set, and is block\n"
                                    "not the same: ranks was 2, and is 4\n"));
  // A file of a version that did not write the configuration.
  then.configuration.clear(), now.ranks = 2;
  EXPECT_THAT(format_comparison(now, then), Not(HasSubstr("not the same")));
}

TEST(BenchResult, GivesTheFiguresOfTheWholeNode) {
  const plan::MachineSpeed machine = calibrate(result_of_two_ranks(), "two", Log());
  EXPECT_EQ(machine.name, "two");
  EXPECT_EQ(machine.cores, 2);
  EXPECT_NEAR(machine.value("product_tflops_float32"), 2 * 0.2, 0.001);
  EXPECT_NEAR(machine.value("product_edge_float32"), 32, 0.1);
  EXPECT_NEAR(machine.value("in_node_gb_s"), 5, 0.01);
  EXPECT_NEAR(machine.value("in_node_latency_us"), 3, 0.01);
  EXPECT_EQ(machine.find("network_gb_s"), nullptr);
}

// One rank on the first node, and two on the second, are not one on each.
TEST(BenchResult, GivesNoLinksOfBothKindsAtOnceAndSaysSo) {
  std::string warnings;
  const Log log([&](const std::string& line) { warnings += line; });
  const auto machine_of = [&](int ranks, int nodes, int on_first_node) {
    Result result = result_of_two_ranks();
    result.ranks = ranks, result.nodes = nodes, result.ranks_on_node = on_first_node;
    return calibrate(result, "several", log);
  };
  EXPECT_NEAR(machine_of(2, 2, 1).value("network_gb_s"), 5, 0.01);
  EXPECT_EQ(warnings, "");
  for (const auto& [ranks, on_first_node] : {std::pair{3, 1}, {4, 2}}) {
    warnings.clear();
    const plan::MachineSpeed machine = machine_of(ranks, 2, on_first_node);
    for (const char* key : {"network_gb_s", "in_node_gb_s", "bandwidth_reached", "message_us"})
      EXPECT_EQ(machine.find(key), nullptr) << key;
    EXPECT_THAT(warnings, HasSubstr("warning: the machine file has no figures of links: "));
  }
}

// As CI had it: another program ran beside the small messages, so that they took longer than large ones.
TEST(BenchResult, GivesLinksThatAPlanTakesWhateverWasMeasured) {
  std::string warnings, note;
  const Log log([&](const std::string& line) { warnings += line; });
  const auto links_of = [&](const std::vector<double>& seconds) {
    Result result = result_of_two_ranks();
    std::erase_if(result.rows, [](const Row& row) { return row.group == "collective"; });
    double bytes = 32768;  // twice those of the bus
    for (const double s : seconds) {
      result.rows.push_back(collective("all_gather", bytes, s));
      bytes *= 64;
    }
    const plan::MachineSpeed machine =
        plan::parse_machine(plan::to_json(calibrate(result, "busy", log)), "busy.json");
    note = machine.find("in_node_gb_s")->note;
    return std::pair{machine.value("in_node_gb_s"), machine.value("in_node_latency_us")};
  };
  // The best bandwidth of a row is 67.11 MB / 10 ms; the latency is what fits best with twice that.
  const auto [bandwidth, latency] = links_of({0.02, 0.015, 0.01});
  EXPECT_THAT(warnings, HasSubstr("warning: small collectives took about as long as large ones"));
  EXPECT_THAT(note, HasSubstr("a guess: "));
  EXPECT_NEAR(bandwidth, 2 * 6.711, 0.01);
  const double large = 0.01 - 0.005, middle = 0.015 - 0.005 / 64, small = 0.02 - 0.005 / 64 / 64;
  const double weights[] = {1 / 0.01 / 0.01, 1 / 0.015 / 0.015, 1 / 0.02 / 0.02};
  EXPECT_NEAR(latency,
              1e6 * (weights[0] * large + weights[1] * middle + weights[2] * small) /
                  (weights[0] + weights[1] + weights[2]),
              10);
  warnings.clear();
  // 64 times the bytes in a thousand times the time: no latency, and not less than none.
  EXPECT_EQ(links_of({1e-6, 1e-3, 1}).second, 0);
  EXPECT_EQ(warnings, "");
  EXPECT_THAT(note, HasSubstr("fitted to "));
}

}  // namespace
}  // namespace llampi::test
