// SPDX-License-Identifier: Apache-2.0
// Logs of llmq, verdicts, and tables.
#include "gpu/beside.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "gpu/results.hpp"
#include "llampi/core/error.hpp"

namespace llampi::test {
namespace {

using namespace bench;
using nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

/// As llmq writes it, with steps of so many milliseconds.
std::string log_of(const std::vector<int>& milliseconds, const std::string& without = "") {
  std::string text = "[\n";
  const auto option = [&](const std::string& name, std::int64_t value) {
    if (name != without)
      text += "  {\"log\": \"option\", \"time\": \"2026\", \"step\": 0, \"name\": \"" + name +
              "\", \"value\": " + std::to_string(value) + "},\n";
  };
  option("hidden-size", 4096);
  option("ffn-size", 14336);
  option("num-heads", 32);
  option("num-kv-heads", 8);
  option("vocab-size", 128256);
  option("num-layers", 18);
  option("seq-len", 8192);
  option("micro-batch", 1);
  option("grad-accumulation", 2);
  text += "  {\"log\": \"gpu-model\", \"step\": 0, \"name\": \"NVIDIA H100 80GB HBM3\"},\n";
  for (const int ms : milliseconds)
    text +=
        "  {\"log\": \"step\", \"step\": 0, \"step_tokens\": 16384, \"duration_ms\": " + std::to_string(ms) +
        "},\n";
  return text + "  {\"log\": \"st";  // it was ended
}

json row_of(const std::string& text, bool deterministic = true) {
  const auto file = std::filesystem::temp_directory_path() / "llampi_beside_test.json";
  std::ofstream(file) << text;
  Options options;
  options.deterministic = deterministic;
  return row_of_llmq(file.string(), options);
}

TEST(Beside, ALogOfLlmqIsARow) {
  const json row = row_of(log_of({5000, 3000, 870, 860, 880}));
  EXPECT_EQ(row["system"], "llmq");
  EXPECT_EQ(row["layers"], 18);
  EXPECT_EQ(row["seq_len"], 8192);
  EXPECT_EQ(row["micro_batches"], 2);
  EXPECT_DOUBLE_EQ(row["step_seconds"], 0.87);
  EXPECT_DOUBLE_EQ(row["tokens_per_second"], 16384 / 0.87);
  EXPECT_EQ(row["peak_tflops"], 989.4);
  EXPECT_NEAR(row["tflops"].get<double>() / 989.4, 0.58, 0.02);  // as its own figure of such a step
}

TEST(Beside, WhatIsNoLogOfLlmqIsRefused) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      row_of(text);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(""), HasSubstr("has 0 steps of llmq"));
  EXPECT_THAT(refusal("{\"log\": 3}\n{[}\n{}"), HasSubstr("has 0 steps of llmq"));
  EXPECT_THAT(refusal(log_of({5000, 3000})), HasSubstr("at least 3 are needed"));
  EXPECT_THAT(refusal(log_of({5000, 3000, 870}, "seq-len")), HasSubstr("does not say seq-len"));
}

json ours(double tokens_per_second, std::int64_t layers = 18) {
  return {{"system", "llampi"},
          {"device", "NVIDIA H100 80GB HBM3"},
          {"hidden", 4096},
          {"feed_forward", 14336},
          {"layers", layers},
          {"seq_len", 8192},
          {"sequences", 1},
          {"micro_batches", 2},
          {"deterministic", true},
          {"attention", "auto"},
          {"state", "bfloat16"},
          {"gradient", "bfloat16"},
          {"step_seconds", 0.85},
          {"checkpointing", "none"},
          {"tokens_per_second", tokens_per_second}};
}

json with(json row, const char* key, const json& value) {
  row[key] = value;
  return row;
}

TEST(Verdicts, CompareWhatIsAlike) {
  const json llmq = row_of(log_of({1, 1, 1000}));  // 16384 tokens/s
  EXPECT_THAT(verdicts({llmq}),
              HasSubstr("| layers of 8B, 8192 | llmq | 1.03 | not measured: no row of llampi"));
  EXPECT_THAT(verdicts({ours(20000)}), HasSubstr("| llmq | 1.03 | not measured: no row of llmq |"));
  EXPECT_THAT(verdicts({llmq, ours(16384 * 1.031)}), HasSubstr("| llmq | 1.03 | 1.031, reached |"));
  EXPECT_THAT(verdicts({llmq, ours(16384 * 1.02)}), HasSubstr("| llmq | 1.03 | 1.020, **NOT reached** |"));
  for (const auto& [key, value] : {std::pair<const char*, json>{"deterministic", false},
                                   {"gradient", "float32"},
                                   {"layers", 17},
                                   {"sequences", 2},
                                   {"device", "NVIDIA H200"}}) {
    EXPECT_THAT(verdicts({llmq, with(ours(20000), key, value)}),
                HasSubstr("| layers of 8B, 8192 | llmq | 1.03 | not measured: no row of llampi"))
        << key;
  }
  // A step of as many sequences, in other micro-batches.
  EXPECT_THAT(verdicts({llmq, with(with(ours(16384 * 1.04), "sequences", 2), "micro_batches", 1)}),
              HasSubstr("| layers of 8B, 8192 | llmq | 1.03 | 1.040, reached |"));
  // All layers: with the micro-batches that a run chooses.
  const json all = with(with(ours(16384 * 1.06), "layers", 32), "checkpointing", "auto");
  const std::string reached = "| all of 8B, 8192 | llmq | 1.05 | 1.060, reached |";
  EXPECT_THAT(verdicts({with(llmq, "layers", 32), with(all, "divides", true)}), HasSubstr(reached));
  EXPECT_THAT(verdicts({with(llmq, "layers", 32), with(all, "divides", true),
                        with(with(all, "divides", false), "tokens_per_second", 30000)}),
              HasSubstr(reached));
  // Of several logs those count that have a row of ours, and of these the fastest.
  EXPECT_THAT(verdicts({llmq, with(with(llmq, "layers", 17), "tokens_per_second", 16384 * 1.02),
                        ours(16384 * 1.05), ours(16384 * 1.04, 17)}),
              HasSubstr("| llmq | 1.03 | 1.020, **NOT reached** |"));
  EXPECT_THAT(
      verdicts({llmq, with(with(llmq, "sequences", 4), "tokens_per_second", 30000), ours(16384 * 1.04)}),
      HasSubstr("| llmq | 1.03 | 1.040, reached |"));
  EXPECT_THAT(verdicts({row_of(log_of({1, 1, 1000}), false), ours(20000)}), HasSubstr("no row of llmq"));
  json torch = llmq;
  torch["system"] = "PyTorch 2.9.0 compiled-cudnn";
  torch.erase("deterministic");
  EXPECT_THAT(verdicts({torch, ours(16384 * 1.04)}),
              HasSubstr("| PyTorch compiled | 1.03 | 1.040, reached |"));
  torch["system"] = "PyTorch 2.9.0 eager";
  EXPECT_THAT(verdicts({torch, ours(16384 * 1.04)}), HasSubstr("no row of PyTorch compiled"));
}

TEST(Verdicts, TakeTheMedianOfEqualRows) {
  const json llmq = row_of(log_of({1, 1, 1000}));
  EXPECT_THAT(verdicts({llmq, ours(16384 * 1.06), ours(16384 * 1.01), ours(16384 * 1.02)}),
              HasSubstr("| llmq | 1.03 | 1.020, **NOT reached** |"));
  EXPECT_THAT(verdicts({llmq, ours(16384 * 1.06), ours(16384 * 1.02)}),
              HasSubstr("| llmq | 1.03 | 1.040, reached |"));
  EXPECT_THAT(verdicts({llmq, with(llmq, "tokens_per_second", 16384 * 1.02),
                        with(llmq, "tokens_per_second", 16384 * 1.5), ours(16384 * 1.04)}),
              HasSubstr("| llmq | 1.03 | 1.020, **NOT reached** |"));
  // PyTorch has two ways, and its better one counts.
  const json torch = with(llmq, "system", "PyTorch 2.9.0 compiled");
  const json cudnn =
      with(with(llmq, "system", "PyTorch 2.9.0 compiled-cudnn"), "tokens_per_second", 16384 * 1.02);
  for (const auto& rows : {std::vector<json>{torch, cudnn}, {cudnn, torch}}) {
    auto all = rows;
    for (json& row : all) row.erase("deterministic");
    all.push_back(ours(16384 * 1.04));
    EXPECT_THAT(verdicts(all), HasSubstr("| PyTorch compiled | 1.03 | 1.020, **NOT reached** |"));
  }
}

// PyTorch is not deterministic, whatever llampi is.
TEST(Verdicts, CompareTheSmallModelInBothWays) {
  const json small =
      with(with(with(ours(16384 * 1.06, 16), "hidden", 2048), "feed_forward", 8192), "seq_len", 4096);
  const json any_order = with(with(small, "deterministic", false), "tokens_per_second", 16384 * 1.09);
  json torch = with(with(small, "system", "PyTorch 2.9.0 compiled"), "tokens_per_second", 16384);
  torch.erase("deterministic");
  const std::string text = verdicts({small, any_order, torch});
  EXPECT_THAT(text, HasSubstr("\n| 1.24 B shape, 4096 | PyTorch compiled | 1.08 | 1.060, **NOT reached** |"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "\n| 1.24 B shape, not deterministic either, 4096 | PyTorch compiled | 1.08 | 1.090, reached |"));
  EXPECT_THAT(verdicts({small, torch}),
              HasSubstr("either, 4096 | PyTorch compiled | 1.08 | not measured: no row of llampi"));
}

TEST(Verdicts, TakeAllOf8BAsARunRecomputesIt) {
  const json llmq = with(row_of(log_of({1, 1, 1000})), "layers", 32);
  const json full = with(ours(16384 * 1.06, 32), "checkpointing", "full");
  EXPECT_THAT(verdicts({llmq, full}), HasSubstr("| all of 8B, 8192 | llmq | 1.05 | not measured"));
  EXPECT_THAT(verdicts({llmq, with(full, "checkpointing", "auto")}),
              HasSubstr("| all of 8B, 8192 | llmq | 1.05 | 1.060, reached |"));
}

TEST(Verdicts, CompareProductsInFp8WithThoseInBfloat16) {
  json fp8 = ours(16384 * 1.36), llmq = row_of(log_of({1, 1, 1000}));
  fp8["product"] = "fp8";
  EXPECT_THAT(verdicts({ours(16384), fp8}),
              HasSubstr("| layers of 8B in FP8, 8192 | llampi in bfloat16 | 1.30 | 1.360, reached |"));
  EXPECT_THAT(verdicts({ours(16384 * 1.1), fp8}),
              HasSubstr("| llampi in bfloat16 | 1.30 | 1.236, **NOT reached** |"));
  EXPECT_THAT(verdicts({fp8}), HasSubstr("| llampi in bfloat16 | 1.30 | not measured"));
  // A log of llmq is beside what it was of.
  EXPECT_THAT(verdicts({llmq, fp8}), HasSubstr("| layers of 8B, 8192 | llmq | 1.03 | not measured"));
  EXPECT_THAT(verdicts({llmq, fp8}), HasSubstr("| llmq in FP8 | 1.00 | not measured"));
  std::string text = log_of({1, 1, 1000});
  text.insert(2,
              "  {\"log\": \"option\", \"step\": 0, \"name\": \"matmul-dtype\", \"value\": \"F8_E4M3\"},\n");
  EXPECT_EQ(row_of(text)["product"], "fp8");
  EXPECT_THAT(verdicts({row_of(text), fp8}), HasSubstr("| llmq in FP8 | 1.00 | 1.360, reached |"));
  EXPECT_THAT(verdicts({row_of(text), ours(20000)}),
              HasSubstr("| layers of 8B, 8192 | llmq | 1.03 | not measured"));
}

TEST(Verdicts, CompareWhatARunChooses) {
  json whole = ours(16384 * 1.01), chunks = ours(16384);
  chunks["logits_workspace"] = 1024;
  EXPECT_THAT(verdicts({whole, chunks}),
              HasSubstr("| logits in chunks of 1 GiB | 1.00 | not measured: no row of"))
      << "the other row has them in chunks, too";
  whole["logits_workspace_bytes"] = std::int64_t{2} << 30;
  EXPECT_THAT(verdicts({whole, chunks}),
              HasSubstr("| layers of 8B, 8192 | logits in chunks of 1 GiB | 1.00 | 1.010, gains |"));
  EXPECT_THAT(verdicts({with(whole, "tokens_per_second", 16384 * 1.003), chunks}),
              HasSubstr("| logits in chunks of 1 GiB | 1.00 | 1.003, no difference within 0.5 % |"));
  EXPECT_THAT(verdicts({with(whole, "tokens_per_second", 16384 * 0.99), chunks}),
              HasSubstr("| logits in chunks of 1 GiB | 1.00 | 0.990, **loses** |"));
  EXPECT_THAT(verdicts({with(whole, "gradient", "float32"), chunks}),
              HasSubstr("| logits in chunks of 1 GiB | 1.00 | not measured"));
  const json llmq = row_of(log_of({1, 1, 1000}));
  EXPECT_THAT(verdicts({llmq, with(whole, "tuning", "auto")}),
              HasSubstr("| layers of 8B, 8192 | llmq | 1.03 | 1.010, **NOT reached** |"));
  for (const json& other : {chunks, with(whole, "tuning", "off")})
    EXPECT_THAT(verdicts({llmq, other}), HasSubstr("| layers of 8B, 8192 | llmq | 1.03 | not measured"))
        << "no run chooses so";
}

TEST(Verdicts, CountProductsAndAttention) {
  json row = ours(16000);
  EXPECT_THAT(verdicts({row}),
              HasSubstr("| products and attention of a step, 8192 | | 88 % | not measured |"));
  // The classes are those of a step of 0.86 s that was issued; as it is replayed, it takes 0.85 s.
  row["profile"] = {{"seconds", 0.86}};
  row["profile"]["classes"] = {
      {"matrix products", 0.60}, {"attention forward", 0.05}, {"attention backward", 0.10}, {"AdamW", 0.03}};
  EXPECT_THAT(verdicts({row}), HasSubstr("| 88 % | 87.2 %, **NOT reached** |"));
  row["profile"]["classes"]["matrix products"] = 0.61;
  EXPECT_THAT(verdicts({row}), HasSubstr("| 88 % | 88.4 %, reached |"));
}

TEST(Tables, SayWhereAStepGoes) {
  json row = ours(16000);
  row.update(
      {{"tflops", 400},
       {"peak_tflops", 989.4},
       {"step_seconds_min", 0.84},
       {"step_seconds_max", 0.86},
       {"memory_bytes", 8e10},
       {"limits", {{"square_tflops", 700}, {"step_products_tflops", 690}, {"products", json::array()}}}});
  row["limits"].update({{"copy_gbytes_per_second", 2800}, {"step_products_seconds", 0.6}});
  row["profile"] = {{"seconds", 0.9}};
  row["profile"]["classes"] = {{"matrix products", 0.8}, {"gradient norm", 0.02}, {"waits and gaps", 0.08}};
  const auto file = std::filesystem::temp_directory_path() / "llampi_beside_test_rows.json";
  std::ofstream(file) << row << "\n";
  const std::string text = tables(file.string());
  EXPECT_THAT(text,
              HasSubstr("| matrix products | 800.0 (88.9 %) |\n| waits and gaps | 80.0 (8.9 %) |\n"
                        "| gradient norm | 20.0 (2.2 %) |\n| all: the step, issued | 900.0 (100.0 %) |\n"
                        "| the step as it runs | 850.0"));

  json small = row;
  small["hidden"] = 2048;
  small["gradient"] = "float32";
  row["gradient"] = "float32";
  std::ofstream(file) << row << "\n" << small << "\n";
  const std::string of_both = tables(file.string());
  for (const char* part :
       {"\n| llampi, hidden 2048 | 8192 |", "| kernels, ms of a step | 8192 | 8192, hidden 2048 |",
        "| product, alone, hidden 4096 |", "| product, alone, hidden 2048 |"})
    EXPECT_THAT(of_both, HasSubstr(part));
}

/// Tables of a file of these rows.
std::string tables_of(const std::vector<json>& rows) {
  const auto file = std::filesystem::temp_directory_path() / "llampi_beside_test_tables.json";
  std::ofstream out(file);
  for (const json& row : rows) out << row << "\n";
  out.close();
  return tables(file.string());
}

TEST(Tables, SayWhetherLlmqWasTakenAsDeterministic) {
  EXPECT_THAT(tables_of({row_of(log_of({1, 1, 1000}))}), HasSubstr("\n| llmq, deterministic | 8192 |"));
  EXPECT_THAT(tables_of({row_of(log_of({1, 1, 1000}), false)}),
              HasSubstr("\n| llmq, not deterministic | 8192 |"));
}

TEST(Tables, NameLastWhatLackedTimeAndNoVerdictNeeds) {
  const json needed = {
      {"system", "llampi --seq-len 8192"}, {"not_measured", "no time left"}, {"verdict", true}};
  const json variant = {{"system", "llampi --graph 0"}, {"not_measured", "no time left"}, {"verdict", false}};
  const json torch = {{"system", "PyTorch 2.11 eager"}, {"seq_len", 4096}, {"not_measured", "no time left"}};
  const json failed = {
      {"system", "llampi --state float32"}, {"not_measured", "exit status 1"}, {"verdict", false}};
  const std::string text = tables_of({needed, variant, torch, failed});
  EXPECT_THAT(text, HasSubstr("\n| llampi --seq-len 8192 |  |  |  | not measured: no time left |"));
  EXPECT_THAT(text, HasSubstr("\n| llampi --state float32 |  |  |  | not measured: exit status 1 |"));
  EXPECT_THAT(text, EndsWith("\nNo time was left for: llampi --graph 0; PyTorch 2.11 eager at 4096.\n"));
  EXPECT_THAT(text, Not(HasSubstr("| llampi --graph 0 |")));
  EXPECT_THAT(tables_of({needed}), Not(HasSubstr("No time was left for")));
}

}  // namespace
}  // namespace llampi::test
