// SPDX-License-Identifier: Apache-2.0
// AttentionStage with its two products in 8 bits. What the backward pass needs of norm(x) is its transpose in 8 bits,
// for the gradient of the weights alone; of the heads attention needs them as they are, so they are cast once more.
#include <algorithm>

#include "model/fp8_products.hpp"
#include "model/llama_stages.hpp"

namespace llampi::model {
namespace {

class Fp8AttentionStage final : public Stage {
 public:
  Fp8AttentionStage(std::string module, std::vector<int> parameters, const LlamaSizes& sizes)
      : module_(std::move(module)),
        parameters_(std::move(parameters)),
        sizes_(sizes),
        shape_(sizes.attention) {}

  StageSpec spec(BatchShape batch, DType compute, const device::OperationSizes& sizes) const override {
    constexpr DType e4m3 = DType::float8_e4m3fn;
    const DType gradient = sizes_.fp8->gradient, statistics = statistics_dtype(compute);
    const std::int64_t tokens = batch.tokens(), longest = batch.positions(), hidden = sizes_.hidden;
    const std::int64_t qkv = shape_.qkv_cols(), heads = shape_.query_cols();
    const auto product_bytes =
        std::max(fp8_workspace(sizes, tokens, hidden, qkv), fp8_workspace(sizes, tokens, heads, hidden));
    const auto forward_bytes = sizes.attention_workspace(shape_, tokens, longest, compute);
    const auto backward_bytes =
        std::max(sizes.attention_backward_workspace(shape_, tokens, longest, compute, batch.dp_room),
                 sizes.rms_norm_backward_workspace(tokens, hidden, compute));
    StageSpec spec;
    spec.module = module_;
    spec.parameters = read_in_both(parameters_);
    spec.fp8_weights = {{parameters_[1], parameters_[2], parameters_[3]}, {parameters_[4]}};
    spec.output = {"attended", tokens, hidden, compute};
    spec.saved = {cheap({"normed^T", hidden, tokens, e4m3}),
                  cheap(fp8_scale_spec("normed scale")),
                  cheap({"inverse_rms", 1, tokens, statistics}),
                  {"qkv", tokens, qkv, compute},
                  {"heads", tokens, heads, compute},
                  {"log_sum_exp", shape_.query_heads, tokens, statistics}};
    spec.forward_scratch = {{"normed", tokens, hidden, compute},
                            {"input in 8 bits", tokens, std::max(hidden, heads), e4m3},
                            fp8_scale_spec("heads scale"),
                            fp8_maximum_spec(),
                            workspace_spec(std::max(forward_bytes, product_bytes), statistics)};
    spec.recompute_scratch = {{"normed", tokens, hidden, compute}, fp8_maximum_spec()};
    spec.backward_scratch = {{"heads^T", heads, tokens, e4m3},
                             fp8_scale_spec("heads scale"),
                             {"gradient in 8 bits", tokens, std::max(hidden, qkv), gradient},
                             {"gradient^T", std::max(hidden, qkv), tokens, gradient},
                             fp8_scale_spec("gradient scale"),
                             {"dheads, dnormed", tokens, std::max(hidden, heads), compute},
                             {"dqkv", tokens, qkv, compute},
                             fp8_maximum_spec(),
                             workspace_spec(std::max(backward_bytes, product_bytes), statistics)};
    require(batch.context == 0, "generation in 8 bits");
    return spec;
  }

  void forward(StageContext& c) const override {
    const auto [norm, q, k, v, o] = take<5>(c.parameters);
    const auto [qkv_weight, o_weight] = take<2>(c.fp8_weights);
    const auto [normed_t, normed_scale, inverse_rms, qkv, heads, log_sum_exp] = take<6>(c.saved);
    const auto [normed, input8, heads_scale, maximum, workspace] = take<5>(c.scratch);
    const auto [rope] = take<1>(c.constants);

    const Fp8Tensor x{shaped(input8, normed.rows, normed.cols), normed_t, normed_scale};
    fp8_norm(c, sizes_.eps, {normed, inverse_rms}, x, maximum);
    fp8_forward(c, x, stacked({q, k, v}), qkv_weight.scale, {}, qkv, workspace);
    c.operations.run(device::op::Rope{
        .positions = c.batch.positions, .rope = rope, .shape = shape_, .backward = false, .qkv = qkv});
    run_attention(c, shape_, {qkv, heads, log_sum_exp}, workspace);
    if (!c.output) return;
    const Fp8Tensor h{shaped(input8, heads.rows, heads.cols), {}, heads_scale};
    fp8_cast(c, heads, h, maximum);
    fp8_forward(c, h, o, o_weight.scale, c.input, c.output, workspace);
  }

  void recompute(StageContext& c) const override {
    const auto [normed_t, normed_scale, inverse_rms, qkv, heads, log_sum_exp] = take<6>(c.saved);
    const auto [normed, maximum] = take<2>(c.scratch);

    fp8_norm(c, sizes_.eps, {normed, inverse_rms}, {{}, normed_t, normed_scale}, maximum);
  }

  void backward(StageContext& c) const override {
    const auto [dnorm, dq, dk, dv, do_] = take<5>(c.parameter_gradients);
    const auto [add_norm, add_q, add_k, add_v, add_o] = take<5>(c.accumulate);
    const auto [qkv_weight, o_weight] = take<2>(c.fp8_weights);
    const auto [normed_t, normed_scale, inverse_rms, qkv, heads, log_sum_exp] = take<6>(c.saved);
    const auto [heads_t, heads_scale, gradient8, gradient_t, gradient_scale, dheads_or_dnormed, dqkv, maximum,
                workspace] = take<9>(c.scratch);
    const auto [rope] = take<1>(c.constants);
    const std::int64_t tokens = qkv.rows, hidden = sizes_.hidden;
    const Tensor dheads = shaped(dheads_or_dnormed, tokens, heads.cols);
    const Tensor dnormed = shaped(dheads_or_dnormed, tokens, hidden);

    const Fp8Tensor dy{shaped(gradient8, tokens, hidden), shaped(gradient_t, hidden, tokens), gradient_scale};
    const Fp8Tensor h{{}, heads_t, heads_scale};
    fp8_cast(c, c.gradient, dy, maximum);
    if (do_) fp8_cast(c, heads, h, maximum);
    fp8_backward(
        c, {.dy = dy, .x = h, .weight = o_weight, .dx = dheads, .dweight = do_, .accumulate_dweight = add_o},
        workspace);
    run_attention_backward(c, shape_, {qkv, heads, log_sum_exp}, dheads, dqkv, workspace);
    c.operations.run(device::op::Rope{.positions = c.batch.positions,
                                      .rope = rope,
                                      .shape = shape_,
                                      .backward = true,
                                      .qkv = dqkv,
                                      .maximum = fp8_begin_maximum(c, maximum)});
    const Fp8Tensor dqkv_cast{shaped(gradient8, tokens, dqkv.cols), shaped(gradient_t, dqkv.cols, tokens),
                              gradient_scale};
    fp8_cast_measured(c, dqkv, dqkv_cast, maximum);
    fp8_backward(c,
                 {.dy = dqkv_cast,
                  .x = {{}, normed_t, normed_scale},
                  .weight = qkv_weight,
                  .dx = dnormed,
                  .dweight = stacked({dq, dk, dv}),
                  .accumulate_dweight = alike({add_q, add_k, add_v})},
                 workspace);
    // The gradient already holds that of the residual branch.
    run_norm_backward(c, dnormed, inverse_rms, Accumulate::yes, workspace);
  }

 private:
  std::string module_;
  std::vector<int> parameters_;
  LlamaSizes sizes_;
  device::AttentionShape shape_;
};

}  // namespace

std::unique_ptr<Stage> make_fp8_attention_stage(std::string module, std::vector<int> parameters,
                                                const LlamaSizes& sizes) {
  return std::make_unique<Fp8AttentionStage>(std::move(module), std::move(parameters), sizes);
}

}  // namespace llampi::model
