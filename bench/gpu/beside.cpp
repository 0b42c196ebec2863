// SPDX-License-Identifier: Apache-2.0
#include "gpu/beside.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>

#include "gpu/steps.hpp"
#include "llampi/core/error.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/device/operation_sizes.hpp"
#include "llampi/fsdp/added_work.hpp"

namespace llampi::bench {
namespace {

using nlohmann::json;

constexpr std::size_t kFirstSteps = 2;  ///< steps of llmq's that are left out

/// One object a line, in an array that a job that was ended has not closed.
std::vector<json> entries_of(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw_user_error("{} cannot be read", file);
  std::vector<json> entries;
  for (std::string line; std::getline(in, line);) {
    const auto begin = line.find('{'), end = line.rfind('}');
    if (begin == line.npos || end == line.npos || end < begin) continue;
    json entry = json::parse(line.substr(begin, end - begin + 1), nullptr, false);
    if (entry.is_object() && entry.contains("log")) entries.push_back(std::move(entry));
  }
  return entries;
}

/// Rows that are alike in all that a figure is of.
using Wanted = std::function<bool(const json& row)>;

struct Claim {
  std::string what, other;  ///< "layers of 8B, 8192", "llmq"
  double ratio;             ///< that our tokens/s are to have to the other's
  Wanted ours, others;
  bool is_choice = false;  ///< of our own ways: whether it gains
};

bool is(const json& row, const char* key, const json& value) {
  return row.contains(key) && row[key] == value;
}

/// Blocks of Llama-3-8B, whatever their number.
bool is_8b(const json& row) { return is(row, "hidden", 4096) && is(row, "feed_forward", 14336); }
bool is_1b(const json& row) { return is(row, "hidden", 2048) && is(row, "feed_forward", 8192); }
/// Of one document in a sequence; how many sequences there are is compared later (shape_of()).
bool is_step(const json& row, std::int64_t seq_len) {
  return is(row, "seq_len", seq_len) && !row.contains("not_measured") && row.value("documents", 1) == 1;
}
/// "llampi", "llmq" or "PyTorch", which is followed by its version and "compiled".
bool is_system(const json& row, const std::string& system) {
  const std::string name = row.value("system", "");
  return name.starts_with(system.substr(0, system.find(' '))) &&
         (!system.ends_with("compiled") || name.find("compiled") != name.npos);
}
bool is_fp8(const json& row) { return row.value("product", "auto") == "fp8"; }
/// What a row may differ in from a run as it comes: whether its logits are in chunks, whether it is deterministic.
struct Variant {
  bool logits_in_chunks = false;
  bool deterministic = true;
};
/// As a run is that nobody has tuned, but for these, and for the state and gradients, which are as llmq and
/// PyTorch have them; its products may be in FP8.
bool as_it_comes(const json& row, const Variant& variant = {}) {
  return is_system(row, "llampi") && row.value("deterministic", true) == variant.deterministic &&
         is(row, "attention", "auto") && row.value("graph", true) && is(row, "state", "bfloat16") &&
         is(row, "gradient", "bfloat16") && row.value("tuning", "auto") != "off" &&
         row.value("offload", "none") == "none" && row.value("labels", 1.0) == 1 &&
         (row.value("logits_workspace", -1) >= 0) == variant.logits_in_chunks;
}

std::vector<Claim> claims() {
  std::vector<Claim> claims;
  const auto add = [&](const std::string& what, const std::string& other, double ratio, const Wanted& shape,
                       bool other_deterministic, const Variant& variant = {}) {
    claims.push_back(
        {what, other, ratio,
         [=](const json& row) { return as_it_comes(row, variant) && !is_fp8(row) && shape(row); },
         [=](const json& row) {
           return is_system(row, other) && !is_fp8(row) && shape(row) &&
                  row.value("deterministic", false) == other_deterministic;
         }});
  };
  const auto layers_of_8b = [](std::int64_t length) -> Wanted {
    return [length](const json& row) {
      return is_8b(row) && is_step(row, length) && row.value("layers", 0) < 32 &&
             row.value("checkpointing", "none") == "none";
    };
  };
  for (const auto& [length, ratio] : {std::pair<std::int64_t, double>{8192, 1.03}, {2048, 1.02}}) {
    const Wanted shape = layers_of_8b(length);
    add(fmt::format("layers of 8B, {}", length), "llmq", ratio, shape, true);
    add(fmt::format("layers of 8B, {}", length), "PyTorch compiled", ratio, shape, false);
  }
  for (const std::int64_t length : {2048, 4096, 8192}) {
    add(
        fmt::format("all of 8B, {}", length), "llmq", 1.05,
        [length](const json& row) {
          return is_8b(row) && is_step(row, length) && is(row, "layers", 32) &&
                 row.value("checkpointing", "auto") == "auto" && row.value("divides", true);
        },
        true);
  }
  for (const std::int64_t length : {4096, 8192}) {
    const Wanted shape = [length](const json& row) { return is_1b(row) && is_step(row, length); };
    add(fmt::format("1.24 B shape, {}", length), "PyTorch compiled", 1.08, shape, false);
    add(fmt::format("1.24 B shape, not deterministic either, {}", length), "PyTorch compiled", 1.08, shape,
        false, {.deterministic = false});
  }
  for (const std::int64_t length : {8192, 2048}) {
    const Wanted shape = layers_of_8b(length);
    claims.push_back({fmt::format("layers of 8B, {}", length), "logits in chunks of 1 GiB", 1.00,
                      [=](const json& row) {
                        const bool whole =
                            row.value("logits_workspace_bytes", std::int64_t{0}) > device::kLogitsBytes;
                        return as_it_comes(row) && !is_fp8(row) && shape(row) && whole;
                      },
                      [=](const json& row) {
                        return as_it_comes(row, {.logits_in_chunks = true}) && !is_fp8(row) && shape(row);
                      },
                      true});
    const Wanted fp8 = [=](const json& row) { return as_it_comes(row) && is_fp8(row) && shape(row); };
    const std::string what = fmt::format("layers of 8B in FP8, {}", length);
    claims.push_back({what, "llampi in bfloat16", 1.30, fp8,
                      [=](const json& row) { return as_it_comes(row) && !is_fp8(row) && shape(row); }});
    claims.push_back({what, "PyTorch compiled", 1.35, fp8, [=](const json& row) {
                        return is_system(row, "PyTorch compiled") && shape(row) &&
                               !row.value("deterministic", false);
                      }});
    claims.push_back({what, "llmq in FP8", 1.00, fp8, [=](const json& row) {
                        return is_system(row, "llmq") && is_fp8(row) && shape(row) &&
                               row.value("deterministic", false);
                      }});
  }
  return claims;
}

/// What rows have in common that are compared, besides what a claim is of. Programs may divide a step's sequences into other
/// micro-batches.
std::string shape_of(const json& row) {
  json shape;
  for (const char* key : {"device", "layers"}) shape[key] = row.value(key, json());
  shape["sequences of a step"] =
      row.value("sequences", std::int64_t{0}) * row.value("micro_batches", std::int64_t{0});
  return shape.dump();
}

/// Of two in the middle their mean.
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Tokens/s of the rows that are wanted, by shape: the median of equal ones; of a program's ways, such as PyTorch's
/// kernels for attention, or other micro-batches, the fastest.
std::map<std::string, double> rates_of(const std::vector<json>& rows, const Wanted& wanted) {
  std::map<std::pair<std::string, std::string>, std::vector<double>> equal;
  for (const json& row : rows) {
    if (row.contains("tokens_per_second") && wanted(row))
      equal[{shape_of(row),
             fmt::format("{} {}", row["system"].get<std::string>(), row.value("sequences", 0))}]
          .push_back(row["tokens_per_second"]);
  }
  std::map<std::string, double> rates;
  for (const auto& [which, values] : equal) {
    double& rate = rates[which.first];
    rate = std::max(rate, median(values));
  }
  return rates;
}

/// Runs of one program differ by about 1 %, and their medians by less.
std::string gain(double ratio) {
  constexpr double kNoise = 0.005;
  if (std::abs(ratio - 1) < kNoise) return "no difference within 0.5 %";
  return ratio > 1 ? "gains" : "**loses**";
}

std::string verdict(bool reached) { return reached ? "reached" : "**NOT reached**"; }

/// Products and attention, of a step at 8192: what is left over is what could be saved.
std::string share_verdict(const std::vector<json>& rows) {
  constexpr double kLeast = 0.88;
  const auto row = std::find_if(rows.begin(), rows.end(), [](const json& r) {
    return as_it_comes(r) && !is_fp8(r) && is_8b(r) && is_step(r, 8192) && is(r, "micro_batches", 2) &&
           r.contains("profile") && r["profile"].contains("classes");
  });
  const std::string what = "| products and attention of a step, 8192 | |";
  if (row == rows.end()) return what + fmt::format(" {:.0f} % | not measured |\n", 100 * kLeast);
  double part = 0;
  for (const auto& [name, seconds] : (*row)["profile"]["classes"].items()) {
    if (name == "matrix products" || name.starts_with("attention")) part += seconds.get<double>();
  }
  const double share =
      part / (*row)["profile"]["seconds"].get<double>();  // of the step that has these classes
  return what +
         fmt::format(" {:.0f} % | {:.1f} %, {} |\n", 100 * kLeast, 100 * share, verdict(share >= kLeast));
}

}  // namespace

json row_of_llmq(const std::string& file, const Options& options) {
  json said = json::object();
  std::string gpu;
  std::vector<double> seconds;
  double tokens = 0;
  for (const json& entry : entries_of(file)) {
    if (entry["log"] == "option" && entry.contains("value")) said[entry.value("name", "")] = entry["value"];
    if (entry["log"] == "gpu-model") gpu = entry.value("name", "");
    if (entry["log"] != "step") continue;
    tokens = entry.value("step_tokens", 0.0);
    seconds.push_back(entry.value("duration_ms", 0.0) / 1000);
  }
  if (seconds.size() <= kFirstSteps || tokens <= 0)
    throw_user_error("{} has {} steps of llmq; at least {} are needed", file, seconds.size(),
                     kFirstSteps + 1);
  seconds.erase(seconds.begin(), seconds.begin() + kFirstSteps);
  std::sort(seconds.begin(), seconds.end());
  const auto number = [&](const char* name) -> std::int64_t {
    if (!said.contains(name) || !said[name].is_number())
      throw_user_error("{} does not say {}: is it llmq's log?", file, name);
    return said[name].get<std::int64_t>();
  };
  Options shape = options;
  shape.hidden = number("hidden-size");
  shape.feed_forward = number("ffn-size");
  shape.query_heads = number("num-heads");
  shape.key_value_heads = number("num-kv-heads");
  shape.vocabulary = number("vocab-size");
  const std::int64_t layers = number("num-layers"), seq_len = number("seq-len");
  const double median = seconds[seconds.size() / 2], rate = tokens / median;
  const bool in_fp8 = is(said, "matmul-dtype", "F8_E4M3");
  const auto model = make_model(shape, layers);
  fsdp::EngineOptions one_sequence;
  one_sequence.batch = {1, seq_len};
  const auto compiled = fsdp::compile_model(
      *model, one_sequence, fsdp::make_device_mesh(one_sequence.strategy, {0}, 0), *device::make_gpu_sizes());
  const double flops = fsdp::flops_per_token(*model, one_sequence, compiled);
  return {{"system", "llmq"},
          {"device", gpu},
          {"hidden", shape.hidden},
          {"feed_forward", shape.feed_forward},
          {"query_heads", shape.query_heads},
          {"key_value_heads", shape.key_value_heads},
          {"vocabulary", shape.vocabulary},
          {"layers", layers},
          {"seq_len", seq_len},
          {"sequences", number("micro-batch")},
          {"micro_batches", number("grad-accumulation")},
          {"deterministic", options.deterministic},
          {"product", in_fp8 ? "fp8" : "auto"},
          {"flops_per_token", flops},
          {"peak_tflops", device::peak_flops(gpu, DType::bfloat16) / 1e12},
          {"step_seconds", median},
          {"step_seconds_min", seconds.front()},
          {"step_seconds_max", seconds.back()},
          {"steps", seconds.size()},
          {"tokens_per_second", rate},
          {"tflops", rate * flops / 1e12},
          {"memory_bytes", 0}};
}

std::string verdicts(const std::vector<json>& rows) {
  std::string text =
      "\n| a step as it comes (deterministic unless the row says otherwise) | beside | is to be | was |\n|---|---|---:|---|\n";
  for (const Claim& claim : claims()) {
    const auto ours = rates_of(rows, claim.ours), others = rates_of(rows, claim.others);
    double our_rate = 0, other_rate = 0;  // of what both have measured, where the other is fastest
    for (const auto& [shape, rate] : others) {
      if (rate > other_rate && ours.contains(shape)) our_rate = ours.at(shape), other_rate = rate;
    }
    std::string was = "not measured: no row of ";
    if (other_rate > 0) {
      const double ratio = our_rate / other_rate;
      was = fmt::format("{:.3f}, {}", ratio, claim.is_choice ? gain(ratio) : verdict(ratio >= claim.ratio));
    } else if (others.empty()) {
      was += claim.other;
    } else {
      was += claim.is_choice ? "llampi as a run chooses"
                             : "llampi with as many layers, and sequences in a step, on that GPU";
    }
    text += fmt::format("| {} | {} | {:.2f} | {} |\n", claim.what, claim.other, claim.ratio, was);
  }
  return text + share_verdict(rows);
}

}  // namespace llampi::bench
