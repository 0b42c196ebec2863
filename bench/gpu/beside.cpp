// SPDX-License-Identifier: Apache-2.0
#include "gpu/beside.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "gpu/steps.hpp"
#include "llampi/core/error.hpp"
#include "llampi/device/gpu.hpp"

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
};

bool is(const json& row, const char* key, const json& value) {
  return row.contains(key) && row[key] == value;
}

/// Blocks of Llama-3-8B, whatever their number.
bool is_8b(const json& row) { return is(row, "hidden", 4096) && is(row, "feed_forward", 14336); }
bool is_1b(const json& row) { return is(row, "hidden", 2048) && is(row, "feed_forward", 8192); }
bool is_step(const json& row, std::int64_t seq_len, int micro_batches) {
  return is(row, "seq_len", seq_len) && is(row, "micro_batches", micro_batches) &&
         !row.contains("not_measured") && row.value("documents", 1) == 1;
}
/// "llampi", "llmq" or "PyTorch", which is followed by its version and "compiled".
bool is_system(const json& row, const std::string& system) {
  const std::string name = row.value("system", "");
  return name.starts_with(system.substr(0, system.find(' '))) &&
         (!system.ends_with("compiled") || name.find("compiled") != name.npos);
}
bool is_fp8(const json& row) { return row.value("product", "auto") == "fp8"; }
/// With what a run chooses by itself: how products are, and whether logits are in chunks.
struct Chosen {
  const char* tuning = "sustained";
  bool logits_in_chunks = false;
};
/// As a run is that nobody has tuned, but for these; its products may be in FP8.
bool as_it_comes(const json& row, const Chosen& chosen = {}) {
  return is_system(row, "llampi") && row.value("deterministic", true) && is(row, "attention", "auto") &&
         row.value("graph", true) && is(row, "state", "bfloat16") &&
         row.value("tuning", "sustained") == chosen.tuning &&
         (row.value("logits_workspace", -1) >= 0) == chosen.logits_in_chunks;
}

std::vector<Claim> claims() {
  std::vector<Claim> claims;
  const auto add = [&](const std::string& what, const std::string& other, double ratio, const Wanted& shape,
                       bool other_deterministic) {
    claims.push_back({what, other, ratio,
                      [=](const json& row) { return as_it_comes(row) && !is_fp8(row) && shape(row); },
                      [=](const json& row) {
                        return is_system(row, other) && !is_fp8(row) && shape(row) &&
                               row.value("deterministic", false) == other_deterministic;
                      }});
  };
  for (const auto& [length, ratio] : {std::pair<std::int64_t, double>{8192, 1.03}, {2048, 1.02}}) {
    const Wanted shape = [length = length](const json& row) {
      return is_8b(row) && is_step(row, length, 2) && row.value("layers", 0) < 32 &&
             row.value("checkpointing", "none") == "none";
    };
    add(fmt::format("layers of 8B, {}", length), "llmq", ratio, shape, true);
    add(fmt::format("layers of 8B, {}", length), "PyTorch compiled", ratio, shape, false);
  }
  for (const std::int64_t length : {2048, 4096, 8192}) {
    add(
        fmt::format("all of 8B, {}", length), "llmq", 1.05,
        [length](const json& row) { return is_8b(row) && is_step(row, length, 2) && is(row, "layers", 32); },
        true);
  }
  for (const std::int64_t length : {4096, 8192}) {
    add(
        fmt::format("1.24 billion, {}", length), "PyTorch compiled", 1.08,
        [length](const json& row) { return is_1b(row) && is_step(row, length, 2); }, false);
  }
  for (const std::int64_t length : {8192, 2048}) {
    const Wanted shape = [length](const json& row) {
      return is_8b(row) && is_step(row, length, 2) && row.value("layers", 0) < 32 &&
             row.value("checkpointing", "none") == "none";
    };
    const Wanted narrow = [shape](const json& row) {
      return shape(row) && !is_fp8(row) && is(row, "gradient", "bfloat16");
    };
    const auto add_choice = [&](const char* other, const Chosen& chosen) {
      claims.push_back(
          {fmt::format("layers of 8B, {}", length), other, 1.00,
           [narrow](const json& row) { return as_it_comes(row) && narrow(row); },
           [narrow, chosen](const json& row) { return as_it_comes(row, chosen) && narrow(row); }});
    };
    add_choice("products chosen in bursts", {.tuning = "bursts"});
    add_choice("logits in chunks of 1 GiB", {.logits_in_chunks = true});
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

/// The fastest row that is wanted: of several, each program has its best way.
const json* fastest(const std::vector<json>& rows, const Wanted& wanted) {
  const json* best = nullptr;
  for (const json& row : rows) {
    if (!row.contains("tokens_per_second") || !wanted(row)) continue;
    if (best == nullptr || row["tokens_per_second"] > (*best)["tokens_per_second"]) best = &row;
  }
  return best;
}

std::string verdict(bool reached) { return reached ? "reached" : "**NOT reached**"; }

/// Products and attention, of a step at 8192: what is left over is what could be saved.
std::string share_verdict(const std::vector<json>& rows) {
  constexpr double kLeast = 0.88;
  const json* const row = fastest(rows, [](const json& r) {
    return as_it_comes(r) && !is_fp8(r) && is_8b(r) && is_step(r, 8192, 2) && r.contains("profile") &&
           r["profile"].contains("classes");
  });
  const std::string what = "| products and attention of a step, 8192 | |";
  if (row == nullptr) return what + fmt::format(" {:.0f} % | not measured |\n", 100 * kLeast);
  double part = 0;
  for (const auto& [name, seconds] : (*row)["profile"]["classes"].items()) {
    if (name == "matrix products" || name.starts_with("attention")) part += seconds.get<double>();
  }
  const double share = part / (*row)["step_seconds"].get<double>();
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
  const double flops = make_model(shape, layers)->flops_per_token(seq_len);
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
      "\n| a step as it comes (deterministic) | beside | is to be | was |\n|---|---|---:|---|\n";
  for (const Claim& claim : claims()) {
    const json* const other = fastest(rows, claim.others);
    const json* const ours = fastest(rows, [&](const json& row) {
      return claim.ours(row) && (other == nullptr || row["layers"] == other->at("layers"));
    });
    std::string was = "not measured";
    if (ours == nullptr || other == nullptr) {
      was += fmt::format(": no row of {}", other == nullptr ? claim.other : "llampi with as many layers");
    } else {
      const double ratio =
          (*ours)["tokens_per_second"].get<double>() / (*other)["tokens_per_second"].get<double>();
      was = fmt::format("{:.3f}, {}", ratio, verdict(ratio >= claim.ratio));
    }
    text += fmt::format("| {} | {} | {:.2f} | {} |\n", claim.what, claim.other, claim.ratio, was);
  }
  return text + share_verdict(rows);
}

}  // namespace llampi::bench
