// SPDX-License-Identifier: Apache-2.0
// Measured times against predicted ones. On an H100 (h100_rows.json) every second row of a kind is fitted, and the others are predicted:
// input/machines/h100.json has the figures that are fitted here. On another H100, days later (h100_later_rows.json), and on an H200 (h200_rows.json) all are predicted, by input/machines/h200.json:
// the H100's figures, with those of memory scaled by the data sheets. docs/benchmarks.md has the tables that are printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "llampi/device/gpu.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/plan/calibration.hpp"
#include "llampi/plan/step_time.hpp"

namespace llampi::test {
namespace {

using namespace plan;
using Json = nlohmann::json;

/// A row: what it takes, and what it took.
struct Measured {
  std::string kind, name;
  TimedWork work;
  bool fitted = false;
  bool alone = false;   ///< measured outside steps, where the power limit lets the clock rise higher
  double rounding = 0;  ///< seconds that the recorded figure may be off by: half of its last digit
};

AttentionKernels kernels_of(const std::string& word) {
  if (word == "native") return AttentionKernels::native;
  return word == "any_order" ? AttentionKernels::any_order : AttentionKernels::deterministic;
}

/// A step of a model on one GPU.
struct MeasuredStep {
  /// @param norm_reads how often the norm read the gradient when it was measured
  explicit MeasuredStep(const Json& row, int norm_reads = 2) : kernels(kernels_of(row["attention"])) {
    model::LlamaConfig config;
    config.vocab_size = row["vocab"];
    config.hidden_size = row["hidden"];
    config.intermediate_size = row["ffn"];
    config.layers = row["layers"];
    config.query_heads = row["heads"];
    config.key_value_heads = row["kv_heads"];
    config.head_dim = config.hidden_size / config.query_heads;
    config.max_position_embeddings = 8192;
    const bool in_fp8 = row.value("product", "auto") == "fp8";
    model = model::make_llama(config, in_fp8 ? std::optional(model::Fp8Recipe()) : std::nullopt);
    options.batch = {row["sequences"], row["seq_len"]};
    if (row.contains("logits_rows"))
      options.batch.logits_bytes =
          row["logits_rows"].get<std::int64_t>() * config.vocab_size * size_of(DType::bfloat16);
    if (kernels == AttentionKernels::deterministic)
      options.batch.attention_room = static_cast<std::int64_t>(row.value("attention_room_gib", 1.0) * 0x1p30);
    options.micro_batches = row["micro_batches"];
    options.checkpointing = *fsdp::parse_checkpointing(row["checkpointing"].get<std::string>());
    options.offload.residuals = row.value("offload_residuals", false);
    const DType gradient = row["gradient"] == "bfloat16" ? DType::bfloat16 : DType::float32;
    auto& precision = options.precision;
    precision.param = precision.compute = precision.master = precision.moment = DType::bfloat16;
    precision.reduce = precision.gradient_shard = gradient;
    options.clip_grad_norm = 1;
    options.parameter_groups = optim::parameter_groups(model->parameters(), {.weight_decay = 0.1});
    mesh = fsdp::make_device_mesh(options.strategy, {0}, 0);
    const auto sizes = device::make_gpu_sizes();
    compiled = fsdp::compile_model(*model, options, mesh, *sizes, comm::Backend::nccl);
    work = work_of_step(*model, options, mesh, compiled, *sizes, comm::Backend::nccl, kernels);
    for (std::size_t i = 0; norm_reads == 2 && i < work.size(); ++i) {
      if (compiled.step.actions[i].op == fsdp::Op::sum_squares) work[i].amounts += Terms(work[i].amounts);
    }
    tokens = static_cast<double>(options.batch.tokens() * options.micro_batches);
  }
  Terms sum() const {
    Terms all;
    for (const auto& action : work) all += action.amounts;
    return all;
  }

  AttentionKernels kernels;
  std::unique_ptr<model::Model> model;
  fsdp::EngineOptions options;
  fsdp::DeviceMesh mesh;
  fsdp::CompiledModel compiled;
  std::vector<ActionWork> work;
  double tokens = 0;
};

Terms attention_work(const Json& row) {
  const device::AttentionShape shape{row["heads"], row["kv_heads"], row["head_dim"]};
  const std::int64_t tokens = row["tokens"], length = row["seq_len"];
  const Tensor qkv{nullptr, DType::bfloat16, tokens, shape.qkv_cols()};
  const device::Documents documents{
      .cu_seqlens = {}, .positions = {}, .count = tokens / length, .max_seqlen = length};
  Terms amounts;
  if (row["kind"] == "forward") {
    amounts = amounts_of(device::op::Attention{.documents = documents,
                                               .shape = shape,
                                               .qkv = qkv,
                                               .out = {},
                                               .log_sum_exp = {},
                                               .workspace = {}},
                         AttentionKernels::any_order);
  } else {
    const std::int64_t heads = row["heads_at_a_time"];
    const std::int64_t attention_room = 2 * length * length * (heads > 0 ? heads : shape.query_heads);
    amounts = amounts_of(device::op::AttentionBackward{.documents = documents,
                                                       .shape = shape,
                                                       .dout = {},
                                                       .qkv = qkv,
                                                       .out = {},
                                                       .log_sum_exp = {},
                                                       .dqkv = {},
                                                       .workspace = {},
                                                       .attention_room = attention_room},
                         kernels_of(row["kind"]));
  }
  amounts[Term::kernels] = 0;  // kernels alone, one after another
  return amounts;
}

double attention_flops(const Json& row) {
  return (row["kind"] == "forward" ? 2.0 : 5.0) * row["tokens"].get<double>() * row["seq_len"].get<double>() *
         row["heads"].get<double>() * row["head_dim"].get<double>();
}

Terms product_work(const Json& row) {
  const std::int64_t m = row["m"], n = row["n"], k = row["k"];
  Terms amounts = amounts_of(device::op::Fp8Product{.a = {nullptr, DType::float8_e4m3fn, m, k},
                                                    .a_scale = {},
                                                    .b = {nullptr, DType::float8_e4m3fn, n, k},
                                                    .b_scale = {},
                                                    .residual = {},
                                                    .y = {},
                                                    .accumulate_y = Accumulate::no,
                                                    .fast_accumulation = true,
                                                    .workspace = {}},
                             AttentionKernels::any_order);
  amounts[Term::kernels] = 0;
  return amounts;
}

/// One class of kernels of a step.
Terms class_work(const MeasuredStep& step, const std::string& kind) {
  Terms amounts;
  const Terms sum = step.sum();
  const auto take = [&](std::initializer_list<Term> terms) {
    for (const Term term : terms) amounts[term] = sum[term];
  };
  if (kind == "products") {
    take({Term::product_half, Term::product_half_edge});
  } else if (kind == "attention_forward") {
    take({Term::attention_forward, Term::attention_forward_edge});
  } else if (kind == "attention_backward") {
    take({Term::attention_native, Term::attention_native_edge});
  } else if (kind == "rms_norm") {
    // Forward and backward of two norms of each block and that before the head; backward also reads the residual's gradient.
    const Tensor x{nullptr, DType::bfloat16, step.options.batch.tokens(), 4096};
    const double norms = 2.0 * 17 + 1;
    amounts[Term::memory_bytes] = norms * step.options.micro_batches * 6 * static_cast<double>(x.bytes());
  } else {
    const fsdp::Op op = kind == "adamw" ? fsdp::Op::update : fsdp::Op::sum_squares;
    for (std::size_t i = 0; i < step.work.size(); ++i) {
      if (step.compiled.step.actions[i].op == op)
        amounts[Term::array_bytes] += step.work[i].amounts[Term::array_bytes];
    }
  }
  return amounts;
}

std::vector<Measured> read_rows(const Json& file) {
  std::vector<Measured> rows;
  const auto add_all = [&](const std::string& kind, const auto& work_of, double rounding = 0) {
    bool fitted = false;
    // The program's own attention is far from the power limit: it takes 7.05 ms a call alone, and 7.06 in a step.
    const bool alone = kind != "steps" && kind != "classes" && kind != "attention_native";
    for (const auto& row : file[kind])
      rows.push_back({kind, row["name"], work_of(row), fitted = !fitted, alone, rounding});
  };
  add_all("steps", [](const Json& row) {
    const MeasuredStep step(row);
    return TimedWork{step.sum(), step.tokens / row["tokens_per_second"].get<double>()};
  });
  for (const char* kind :
       {"attention_forward", "attention_any_order", "attention_deterministic", "attention_native"}) {
    add_all(kind, [](const Json& row) {
      return TimedWork{attention_work(row), attention_flops(row) / row["tflops"].get<double>() * 1e-12};
    });
  }
  add_all("products_fp8", [](const Json& row) {
    const double flops = 2 * row["m"].get<double>() * row["n"].get<double>() * row["k"].get<double>();
    return TimedWork{product_work(row), flops / row["tflops"].get<double>() * 1e-12};
  });
  for (const auto& row : file["steps"]) {
    if (row["name"] != file["classes_step"]) continue;
    const MeasuredStep step(row);
    add_all(
        "classes",
        [&](const Json& of_class) {
          return TimedWork{class_work(step, of_class["kind"]), of_class["milliseconds"].get<double>() * 1e-3};
        },
        0.5e-3);
  }
  return rows;
}

/// Costs of kernels in a step, from the fitted rows, and how much longer what was measured alone takes there.
struct Fit {
  Terms costs;
  double slower_in_steps = 1;
  double seconds_of(const Measured& row) const {
    return plan::seconds_of(row.work.amounts, costs) / (row.alone ? slower_in_steps : 1);
  }
};

Fit fit(const std::vector<Measured>& rows) {
  Fit best;
  double least = std::numeric_limits<double>::infinity();
  for (int percent = 100; percent <= 150; percent += 2) {
    Fit tried{.costs = {}, .slower_in_steps = percent / 100.0};
    std::vector<TimedWork> in_steps;
    for (const auto& row : rows) {
      if (!row.fitted) continue;
      in_steps.push_back(row.work);
      if (row.alone) in_steps.back().seconds *= tried.slower_in_steps;
    }
    tried.costs = fit_costs(in_steps);
    double squares = 0;
    for (const auto& row : rows) {
      if (row.fitted) squares += std::pow(tried.seconds_of(row) / row.work.seconds - 1, 2);
    }
    if (squares < least) least = squares, best = tried;
  }
  return best;
}

/// Of a prediction: from the nearest time that would have been recorded as the measured one was.
double error_of(double predicted, const Measured& row) {
  const double measured = row.work.seconds;
  return predicted / std::clamp(predicted, measured - row.rounding, measured + row.rounding) - 1;
}

TEST(H100Rows, HalfOfTheRowsPredictTheOthers) {
  std::ifstream stream(LLAMPI_TEST_DATA "/unit/plan/h100_rows.json");
  const Json file_of_rows = Json::parse(stream);
  const auto rows = read_rows(file_of_rows);
  const Fit found = fit(rows);
  const Terms& costs = found.costs;
  fmt::print("{:<24} {:<50} {:>12} {:>12} {:>8} {:>8}\n", "kind", "row", "measured ms", "predicted ms",
             "error", "rounded");
  int predicted = 0;
  for (const auto& row : rows) {
    const double seconds = found.seconds_of(row);
    const double error = error_of(seconds, row);
    fmt::print("{:<24} {:<50} {:>12.3f} {:>12.3f} {:>+7.1f}% {:>+7.1f}%{}\n", row.kind, row.name,
               row.work.seconds * 1e3, seconds * 1e3, 100 * (seconds / row.work.seconds - 1), 100 * error,
               row.fitted ? "  fitted" : "");
    if (row.fitted) continue;
    ++predicted;
    EXPECT_LE(std::abs(error), 0.10) << row.name;
  }
  for (const auto& row : file_of_rows["steps_of_unknown_batch"]) {
    const MeasuredStep step(row);
    const double measured = step.tokens / row["tokens_per_second"].get<double>();
    fmt::print("not used: {}, with {} tokens a micro-batch {:+.1f}%\n", row["name"].get<std::string>(),
               step.options.batch.tokens(), 100 * (seconds_of(step.sum(), costs) / measured - 1));
  }
  EXPECT_EQ(predicted, 20);
  fmt::print("kernels alone take {} times as long in a step\n", found.slower_in_steps);
  // The power limit holds the clock at about 1,450 MHz in steps; alone it may reach 1,980 MHz.
  EXPECT_GT(found.slower_in_steps, 1.1);
  EXPECT_LT(found.slower_in_steps, 1980.0 / 1450);
  MachineSpeed machine;
  set_costs(machine, costs, 1, {});
  const MachineSpeed file = read_machine("h100");
  for (const auto& kind : figures_of_machines()) {
    if (kind.gives == FigureKind::Gives::nothing || machine.find(kind.key) == nullptr) continue;
    fmt::print("{} {:.4g}\n", kind.key, machine.value(kind.key));
    if (file.find(kind.key) == nullptr) {
      ADD_FAILURE() << "input/machines/h100.json has no " << kind.key;
    } else {
      EXPECT_NEAR(file.value(kind.key), machine.value(kind.key), 0.02 * machine.value(kind.key) + 1e-9)
          << kind.key;
    }
  }
}

/// Predicts the steps of a file with the figures of a machine, and prints them.
void expect_predicted(const std::string& file, const std::string& machine_name) {
  std::ifstream stream(LLAMPI_TEST_DATA "/unit/plan/" + file);
  const Json file_of_rows = Json::parse(stream);
  const MachineSpeed machine = read_machine(machine_name);
  EXPECT_EQ(file_of_rows["steps"].size(), 9U);
  for (const auto& row : file_of_rows["steps"]) {
    const MeasuredStep step(row, file_of_rows.value("norm_reads", 2));
    const double seconds = seconds_of(step.sum(), costs_of(machine, 1, step.work));
    const double error = seconds * 1e3 / row["milliseconds"].get<double>() - 1;
    fmt::print("{:<75} {:>8.1f} {:>8.1f} {:>+6.1f}%\n", row["name"].get<std::string>(),
               row["milliseconds"].get<double>(), seconds * 1e3, 100 * error);
    EXPECT_LE(std::abs(error), 0.05) << row["name"];
  }
}

TEST(H200Rows, AreThoseOfAnH100WithFasterMemory) { expect_predicted("h200_rows.json", "h200"); }

TEST(H100Rows, LaterOnesWereKnownBefore) { expect_predicted("h100_later_rows.json", "h100"); }

}  // namespace
}  // namespace llampi::test
