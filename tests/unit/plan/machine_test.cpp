// SPDX-License-Identifier: Apache-2.0
// Machine files, what their figures cost, and figures from measured times.
#include "llampi/plan/machine.hpp"

#include <gtest/gtest.h>

#include "llampi/core/error.hpp"
#include "llampi/plan/calibration.hpp"
#include "support/files.hpp"

namespace llampi::test {
namespace {

using namespace plan;

std::string refusal_of(const std::string& text) {
  try {
    parse_machine(text, "x.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

std::string with_figures(const std::string& figures) {
  return R"({"name": "x", "device": "h100", "figures": {)" + figures + "}}";
}

TEST(MachineFile, ThoseOfTheProgramAreReadAndWrittenAsTheyAre) {
  EXPECT_GE(known_machines().size(), 4U);
  for (const auto& name : known_machines()) {
    const MachineSpeed machine = read_machine(name);
    EXPECT_EQ(machine.name, name);
    const std::string text = to_json(machine);
    EXPECT_EQ(to_json(parse_machine(text, name)), text);
    EXPECT_GT(machine.value("memory_gb_s"), 0) << name;
  }
}

TEST(MachineFile, RefusesWhatItIsNot) {
  EXPECT_EQ(refusal_of("[]"), "x.json is not a machine file: it needs to be a JSON object with \"figures\"");
  EXPECT_EQ(refusal_of(R"({"figures": {}})"),
            "x.json is not a machine file: it needs a \"name\" and a \"device\"");
  EXPECT_EQ(refusal_of(with_figures(R"("speed": {"value": 1})")),
            "x.json: there is no figure speed of machines");
  EXPECT_EQ(refusal_of(with_figures(R"("memory_gb_s": {"value": "1"})")),
            "x.json: figure memory_gb_s needs a \"value\" that is a number");
  EXPECT_EQ(refusal_of(with_figures(R"("memory_gb_s": {"value": 0, "source": "assumed"})")),
            "x.json: figure memory_gb_s is 0; leave it out if it is not known");
  EXPECT_EQ(refusal_of(with_figures(R"("memory_gb_s": {"value": 1, "source": "heard"})")),
            "x.json: figure memory_gb_s needs a \"source\": measured, data sheet or assumed");
  EXPECT_EQ(refusal_of(R"({"name": "x", "device": "cpu", "figures": {}})"),
            "x.json: device cpu needs \"cores\", and no other device has them");
  EXPECT_EQ(refusal_of(with_figures(R"("memory_gb_s": {"value": 1, "source": "assumed"})")), "accepted");
}

TEST(MachineFile, SaysWhyItCannotBeRead) {
  const TemporaryFolder folder;
  const auto refusal = [](const std::filesystem::path& file) {
    return user_error([&] { read_machine(file.string()); });
  };
  const std::string names = "give the path of one, or one of h100, h200, a100, workstation-2-cores";
  EXPECT_EQ(refusal("h1000"), "there is no machine file \"h1000\"; " + names);
  EXPECT_EQ(refusal(folder.path()), "there is no machine file \"" + folder.path().string() + "\"; " + names);
  write_text(folder / "mine.json", to_json(read_machine("h100")));
  EXPECT_EQ(read_machine((folder / "mine.json").string()).name, "h100");
  const AsNobody nobody(folder.path());
  EXPECT_EQ(refusal(folder / "mine.json"),
            (folder / "mine.json").string() + " cannot be read: Permission denied");
}

TEST(MachineFile, TakesZeroForTimesAndEdgesAndForNoSpeed) {
  for (const FigureKind& kind : figures_of_machines()) {
    const std::string key(kind.key);
    const bool is_speed = key.find("_tflops") != std::string::npos || key.ends_with("_gb_s") ||
                          key == "bandwidth_reached" || key == "gpus_per_node";
    EXPECT_EQ(refusal_of(with_figures('"' + key + R"(": {"value": 0, "source": "assumed"})")),
              is_speed ? "x.json: figure " + key + " is 0; leave it out if it is not known" : "accepted");
  }
}

TEST(MachineFile, IsAcceptedOrRefusedInOneSentenceWhateverIsChanged) {
  const std::string text = to_json(read_machine("workstation-2-cores"));
  for (std::size_t i = 0; i < text.size(); ++i) {
    refusal_of(text.substr(0, i));  // anything else than a UserError ends the test
    for (const char c : {'"', '{', '9', '-', '\xff'}) {
      std::string changed = text;
      changed[i] = c;
      EXPECT_EQ(refusal_of(changed).find('\n'), std::string::npos);
    }
  }
}

TEST(MachineFile, NamesTheFigureThatAPlanNeeds) {
  const MachineSpeed machine = parse_machine(with_figures(""), "x.json");
  ActionWork work;
  work.amounts[Term::product_half] = 1;
  try {
    costs_of(machine, 1, {work});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "x.json has no figure product_tflops_bfloat16, which this plan needs (products of 16-bit numbers, large "
        "ones); use a machine file that has it");
  }
}

Terms product(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k) {
  return amounts_of(
      device::op::Linear{.x = {nullptr, dtype, m, k}, .weight = {nullptr, dtype, n, k}, .y = {}},
      AttentionKernels::native);
}

TEST(Costs, RatesFallAtSmallShapes) {
  const MachineSpeed machine =
      parse_machine(with_figures(R"("product_tflops_bfloat16": {"value": 100, "source": "assumed"},
                      "product_edge_bfloat16": {"value": 64, "source": "assumed"},
                      "kernel_us": {"value": 5, "source": "assumed"})"),
                    "x.json");
  const Terms work = product(DType::bfloat16, 128, 256, 256);
  const Terms costs = costs_of(machine, 1, {{.amounts = work}});
  const double operations = 2.0 * 128 * 256 * 256, edges = 1.0 / 128 + 1.0 / 256 + 1.0 / 256;
  EXPECT_NEAR(seconds_of(work, costs), operations / 100e12 * (1 + 64 * edges) + 5e-6, 1e-12);
  // A rank with half of the cores computes half as fast; a kernel starts as fast.
  EXPECT_NEAR(seconds_of(work, costs_of(machine, 0.5, {{.amounts = work}})),
              operations / 50e12 * (1 + 64 * edges) + 5e-6, 1e-12);
}

TEST(Calibration, FindsTheCostsThatTimesWereMadeWith) {
  Terms costs;
  costs[Term::product_float32] = 1e-11, costs[Term::product_float32_edge] = 4e-10;
  costs[Term::memory_bytes] = 1e-10, costs[Term::kernels] = 2e-6;
  std::vector<TimedWork> rows;
  for (const std::int64_t side : {16, 64, 256, 1024}) {
    const Terms of_product = product(DType::float32, side, side, 2 * side);
    rows.push_back({of_product, seconds_of(of_product, costs)});
    const Terms of_sum = amounts_of(device::op::Add{.source = {nullptr, DType::bfloat16, side, side},
                                                    .destination = {nullptr, DType::bfloat16, side, side}},
                                    AttentionKernels::native);
    rows.push_back({of_sum, seconds_of(of_sum, costs)});
  }
  const Terms fitted = fit_costs(rows);
  for (const Term term :
       {Term::product_float32, Term::product_float32_edge, Term::memory_bytes, Term::kernels})
    EXPECT_NEAR(fitted[term] / costs[term], 1, 1e-3) << static_cast<int>(term);
  EXPECT_EQ(fitted[Term::attention_forward], 0);
  MachineSpeed machine;
  set_costs(machine, fitted, 0.5, {.source = Source::measured});
  EXPECT_NEAR(machine.value("product_tflops_float32"), 0.2, 1e-3);  // of two ranks
  EXPECT_NEAR(machine.value("product_edge_float32"), 40, 0.1);
  EXPECT_EQ(machine.find("attention_forward_tflops"), nullptr);
}

}  // namespace
}  // namespace llampi::test
