// SPDX-License-Identifier: Apache-2.0
#include "gpu/results.hpp"

#include <algorithm>

#include "gpu/fp8.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::bench {
namespace {

using nlohmann::json;

const ProductTime& product(const Limits& limits, const std::string& name) {
  return *std::find_if(limits.products.begin(), limits.products.end(),
                       [&](const ProductTime& p) { return p.name == name; });
}

/// Where the time of an operation belongs: `of_products` of it to the matrix products, the rest to `kernels`.
struct Split {
  std::string kernels;
  double of_products = 0;
};

/// Operations that fuse a product with something else are split by what the product takes alone.
Split split(const std::string& operation, const OperationTime& time, const Limits& limits,
            int micro_batches) {
  const auto calls = static_cast<double>(time.calls);
  const auto& qkv = product(limits, "qkv");
  const auto& gate_up = product(limits, "gate_up");
  const auto& head = product(limits, "head");
  const auto is = [&](auto... names) { return ((operation == names) || ...); };
  using namespace device::op;
  if (is(QkvRope::kName)) return {"RoPE", calls * qkv.forward_seconds};
  if (is(GateUpSwiglu::kName)) return {"SwiGLU", calls * gate_up.forward_seconds};
  if (is(LinearCrossEntropyBackward::kName)) return {"loss", head.seconds_per_step() * calls / micro_batches};
  if (is(ProjectionResidual::kName, InputGradient::kName, WeightGradient::kName, Linear::kName,
         Fp8Product::kName))
    return {"", time.seconds};
  if (is(Fp8Maximum::kName, Fp8Scales::kName, Fp8Cast::kName, Fp8Transpose::kName, Fp8BlockMaximum::kName,
         Fp8BlockScales::kName, Fp8BlockCast::kName, Fp8TileCast::kName, RmsNormCast::kName,
         SwigluBackwardCast::kName, RopeBackwardCast::kName))
    return {"casts to 8 bits"};
  if (is(Rope::kName)) return {"RoPE"};
  if (is(Attention::kName, CachedAttention::kName)) return {"attention forward"};
  if (is(AttentionBackward::kName)) return {"attention backward"};
  if (is(Swiglu::kName, SwigluBackward::kName)) return {"SwiGLU"};
  if (is(RmsNorm::kName, RmsNormBackward::kName)) return {"RMSNorm"};
  if (is(Embedding::kName, EmbeddingBackward::kName)) return {"embedding"};
  if (is(SumSquares::kName, FinishNorm::kName)) return {"gradient norm"};
  if (is(AdamW::kName)) return {"AdamW"};
  return {"copies, casts, zeros"};
}

/// Seconds of a profiled step by class of kernels, which add up to the step, and what
/// is left of the step. That is waits for other streams and for the host, and gaps between kernels.
json classes(const Profile& profile, const Limits& limits, int micro_batches) {
  std::map<std::string, double> seconds;
  double sum = 0;
  for (const auto& [name, time] : profile.operations) {
    const auto [kernels, of_products] = split(name.substr(0, name.find(' ')), time, limits, micro_batches);
    const double products = std::min(of_products, time.seconds);
    seconds["matrix products"] += products;
    if (!kernels.empty()) seconds[kernels] += time.seconds - products;
    sum += time.seconds;
  }
  seconds["waits and gaps"] = profile.seconds - sum;
  return seconds;
}

json to_json(const Fp8Limits& limits) {
  json products = json::array(), bandwidths = json::array();
  for (const auto& p : limits.products) {
    products.push_back({{"name", p.name},
                        {"forward_tflops", p.flops / p.forward_seconds / 1e12},
                        {"dx_tflops", p.flops / p.dx_seconds / 1e12},
                        {"dweight_tflops", p.flops / p.dweight_seconds / 1e12}});
  }
  for (const auto& b : limits.bandwidths)
    bandwidths.push_back({{"name", b.name}, {"gbytes_per_second", b.bytes_per_second / 1e9}});
  return {{"products", products}, {"bandwidths", bandwidths}};
}

json to_json(const Limits& limits) {
  json products = json::array();
  for (const auto& p : limits.products) {
    products.push_back({{"name", p.name},
                        {"shape", {p.rows, p.out, p.in}},
                        {"calls", p.forward_calls},
                        {"forward_tflops", p.forward_flops() / p.forward_seconds / 1e12},
                        {"backward_tflops", 2 * p.forward_flops() / p.backward_seconds / 1e12},
                        {"seconds_per_step", p.seconds_per_step()}});
  }
  json result = {{"square_tflops", limits.square_flops / 1e12},
                 {"copy_gbytes_per_second", limits.copy_bandwidth / 1e9},
                 {"step_products_tflops", limits.product_flops() / 1e12},
                 {"step_products_seconds", limits.product_seconds()},
                 {"products", products}};
  if (limits.fp8) result["fp8"] = to_json(*limits.fp8);
  return result;
}

json to_json(const Profile& profile, const StepTimes& steps) {
  json operations = json::array();
  for (const auto& [name, time] : profile.operations) {
    operations.push_back({{"name", name}, {"calls", time.calls}, {"seconds", time.seconds}});
    if (time.flops > 0) operations.back()["tflops"] = time.flops / time.seconds / 1e12;
  }
  return {{"seconds", profile.seconds},
          {"same_loss", profile.first_loss == steps.losses.front()},
          {"operations", operations}};
}

}  // namespace

json to_json(const Options& o, const Machine& machine, const Measured& m) {
  const auto& seconds = m.steps.seconds;
  const double median = seconds[seconds.size() / 2];
  const double rate = static_cast<double>(o.tokens * o.micro_batches) / median;  // of a rank
  json row = {{"system", "llampi"},
              {"device", machine.name},
              {"libraries", machine.libraries},
              {"kernels", machine.device().describe()},
              {"ranks", m.ranks},
              {"hidden", o.hidden},
              {"feed_forward", o.feed_forward},
              {"query_heads", o.query_heads},
              {"key_value_heads", o.key_value_heads},
              {"vocabulary", o.vocabulary},
              {"layers", m.layers},
              {"parameters", m.parameters},
              {"seq_len", o.seq_len},
              {"sequences", o.tokens / o.seq_len},
              {"micro_batches", o.micro_batches},
              {"divides", o.micro_batch == "chosen"},
              {"documents", o.documents},
              {"checkpointing", o.checkpointing},
              {"offload", o.offload},
              {"labels", o.labels},
              {"state", o.state},
              {"gradient", o.gradient},
              {"product", o.product},
              {"attention", o.attention},
              {"deterministic", o.deterministic},
              {"graph", o.graph},
              {"tuning", o.tuning},
              {"tuning_seconds", m.steps.tuning_seconds},
              {"recomputed", m.steps.checkpointing},
              {"offload_residuals", m.steps.offload_residuals},
              {"attention_workspace_bytes", m.steps.attention_room},
              {"logits_workspace", o.logits_workspace},
              {"logits_workspace_bytes", m.steps.logits_bytes},
              {"flops_per_token", m.steps.flops_per_token},
              {"peak_tflops", machine.peak_flops / 1e12},
              {"step_seconds", median},
              {"step_seconds_min", seconds.front()},
              {"step_seconds_max", seconds.back()},
              {"steps", seconds.size()},
              {"tokens_per_second", rate},
              {"tflops", rate * m.steps.flops_per_token / 1e12},
              {"losses", m.steps.losses},
              {"grad_norm", m.steps.grad_norm},
              {"memory_bytes", m.steps.arena_bytes}};
  if (m.limits) row["limits"] = to_json(*m.limits);
  if (m.profile) row["profile"] = to_json(*m.profile, m.steps);
  if (m.profile && m.limits) {
    row["profile"]["classes"] = classes(*m.profile, *m.limits, o.micro_batches);
  }
  return row;
}

}  // namespace llampi::bench
