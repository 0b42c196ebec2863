// SPDX-License-Identifier: Apache-2.0
// out = x + attention(rope(norm(x) [Wq; Wk; Wv]^T)) Wo^T
#include <algorithm>

#include "llampi/model/stage_support.hpp"
#include "model/llama_stages.hpp"

namespace llampi::model {
namespace {

class AttentionStage final : public Stage {
 public:
  AttentionStage(std::string module, std::vector<int> parameters, const LlamaSizes& sizes)
      : module_(std::move(module)),
        parameters_(std::move(parameters)),
        sizes_(sizes),
        shape_(sizes.attention) {}

  StageSpec spec(BatchShape batch, DType compute, const device::OperationSizes& device) const override {
    const std::int64_t tokens = batch.tokens(), longest = batch.positions();
    const DType statistics = statistics_dtype(compute);
    const auto forward_bytes = device.attention_workspace(shape_, tokens, longest, compute);
    const auto backward_bytes =
        std::max(device.attention_backward_workspace(shape_, tokens, longest, compute),
                 device.rms_norm_backward_workspace(tokens, sizes_.hidden, compute));
    StageSpec spec;
    spec.module = module_;
    spec.parameters = read_in_both(parameters_);
    spec.output = {"attended", tokens, sizes_.hidden, compute};
    spec.saved = {cheap({"normed", tokens, sizes_.hidden, compute}),
                  cheap({"inverse_rms", 1, tokens, statistics}),
                  {"qkv", tokens, shape_.qkv_cols(), compute},
                  {"heads", tokens, shape_.query_cols(), compute},
                  {"log_sum_exp", shape_.query_heads, tokens, statistics}};
    spec.forward_scratch = {workspace_spec(forward_bytes, statistics)};
    if (batch.context > 0) {
      require(batch.sequences == 1, "generation of one sequence at a time");
      spec.kept = {{"keys and values", batch.context, 2 * shape_.key_value_cols(), compute}};
    }
    spec.backward_scratch = {{"dheads", tokens, shape_.query_cols(), compute},
                             {"dqkv", tokens, shape_.qkv_cols(), compute},
                             {"dnormed", tokens, sizes_.hidden, compute},
                             workspace_spec(backward_bytes, statistics)};
    return spec;
  }

  void forward(StageContext& c) const override {
    const auto [norm, q, k, v, o] = take<5>(c.parameters);
    const auto [normed, inverse_rms, qkv, heads, log_sum_exp] = take<5>(c.saved);
    const auto [workspace] = take<1>(c.scratch);
    const auto [rope] = take<1>(c.constants);

    c.device.rms_norm(c.input, norm, sizes_.eps, normed, inverse_rms);
    c.device.qkv_rope(c.batch, normed, stacked({q, k, v}), rope, shape_, qkv);
    if (c.kept.empty()) {
      c.device.attention(c.batch, c.seq_len, shape_, qkv, heads, log_sum_exp, workspace);
    } else {
      c.device.attention_cached(c.batch, shape_, qkv, c.kept[0], heads, workspace);
    }
    if (c.output) c.device.projection_residual(heads, o, c.input, c.output);
  }

  void recompute(StageContext& c) const override {
    const auto [normed, inverse_rms, qkv, heads, log_sum_exp] = take<5>(c.saved);

    c.device.rms_norm(c.input, c.parameters[0], sizes_.eps, normed, inverse_rms);
  }

  void backward(StageContext& c) const override {
    const auto [norm, q, k, v, o] = take<5>(c.parameters);
    const auto [dnorm, dq, dk, dv, do_] = take<5>(c.parameter_gradients);
    const auto [add_norm, add_q, add_k, add_v, add_o] = take<5>(c.accumulate);
    const auto [normed, inverse_rms, qkv, heads, log_sum_exp] = take<5>(c.saved);
    const auto [dheads, dqkv, dnormed, workspace] = take<4>(c.scratch);
    const auto [rope] = take<1>(c.constants);

    c.device.projection_backward(c.gradient, heads, o, dheads, do_, add_o);
    c.device.attention_backward(c.batch, c.seq_len, shape_, dheads, qkv, heads, log_sum_exp, dqkv, workspace);
    c.device.qkv_rope_backward(c.batch, dqkv, normed, stacked({q, k, v}), rope, shape_, dnormed,
                               stacked({dq, dk, dv}), alike({add_q, add_k, add_v}));
    // The gradient already holds that of the residual branch.
    c.device.rms_norm_backward(dnormed, c.input, norm, inverse_rms, c.gradient, device::Accumulate::yes,
                               dnorm, add_norm, workspace);
  }

 private:
  std::string module_;
  std::vector<int> parameters_;
  LlamaSizes sizes_;
  device::AttentionShape shape_;
};

}  // namespace

std::unique_ptr<Stage> make_attention_stage(std::string module, std::vector<int> parameters,
                                            const LlamaSizes& sizes) {
  return std::make_unique<AttentionStage>(std::move(module), std::move(parameters), sizes);
}

}  // namespace llampi::model
