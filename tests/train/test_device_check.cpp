// SPDX-License-Identifier: Apache-2.0
// The comparison of devices: equal ones pass, and every operation that a step uses is found out when it is
// broken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "device/cpu/cpu_device.hpp"
#include "selfcheck/device_check.hpp"

namespace llampi::selfcheck {
namespace {

using ::testing::HasSubstr;

/// The last sixteenth of a result was never written.
void leave_out_the_end(Tensor result) {
  const std::int64_t first = result.elements() - (result.elements() + 15) / 16;
  const Tensor end = result.slice(first, result.elements());
  std::memset(end.data, 0, static_cast<std::size_t>(end.bytes()));
}

/// A CPU of which one operation is broken.
class BrokenDevice final : public device::CpuDevice {
 public:
  explicit BrokenDevice(std::string broken)
      : device::CpuDevice(1, *device::available_kernels().front()), broken_(std::move(broken)) {}

  void embedding(const device::Batch& batch, Tensor table, Tensor x) override {
    device::CpuDevice::embedding(batch, table, x);
    spoil("embedding", x);
  }
  void embedding_backward(const device::Batch& batch, Tensor dx, Tensor dtable,
                          device::Accumulate accumulate) override {
    device::CpuDevice::embedding_backward(batch, dx, dtable, accumulate);
    spoil("embedding_backward", dtable);
  }
  void rms_norm(Tensor x, Tensor weight, double eps, Tensor y, Tensor inverse_rms) override {
    device::CpuDevice::rms_norm(x, weight, eps, y, inverse_rms);
    spoil("rms_norm", y);
    spoil("rms_norm's statistics", inverse_rms);
  }
  void rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor inverse_rms, Tensor dx,
                         device::Accumulate accumulate_dx, Tensor dweight,
                         device::Accumulate accumulate_dweight, Tensor workspace) override {
    device::CpuDevice::rms_norm_backward(dy, x, weight, inverse_rms, dx, accumulate_dx, dweight,
                                         accumulate_dweight, workspace);
    spoil("rms_norm_backward", dx);
    spoil("rms_norm_backward's weight", dweight);
  }
  void qkv_rope(const device::Batch& batch, Tensor x, Tensor weight, Tensor rope,
                device::AttentionShape shape, Tensor qkv) override {
    device::CpuDevice::qkv_rope(batch, x, weight, rope, shape, qkv);
    spoil("qkv_rope", qkv);
  }
  void qkv_rope_backward(const device::Batch& batch, Tensor dqkv, Tensor x, Tensor weight, Tensor rope,
                         device::AttentionShape shape, Tensor dx, Tensor dweight,
                         device::Accumulate accumulate_dweight) override {
    device::CpuDevice::qkv_rope_backward(batch, dqkv, x, weight, rope, shape, dx, dweight,
                                         accumulate_dweight);
    spoil("qkv_rope_backward", dx);
    spoil("qkv_rope_backward's weight", dweight);
  }
  void attention(const device::Batch& batch, std::int64_t longest, device::AttentionShape shape, Tensor qkv,
                 Tensor out, Tensor log_sum_exp, Tensor workspace) override {
    device::CpuDevice::attention(batch, longest, shape, qkv, out, log_sum_exp, workspace);
    spoil("attention", out);
    spoil("attention's statistics", log_sum_exp);
  }
  void attention_backward(const device::Batch& batch, std::int64_t longest, device::AttentionShape shape,
                          Tensor dout, Tensor qkv, Tensor out, Tensor log_sum_exp, Tensor dqkv,
                          Tensor workspace) override {
    device::CpuDevice::attention_backward(batch, longest, shape, dout, qkv, out, log_sum_exp, dqkv,
                                          workspace);
    spoil("attention_backward", dqkv);
  }
  void projection_residual(Tensor x, Tensor weight, Tensor residual, Tensor y) override {
    device::CpuDevice::projection_residual(x, weight, residual, y);
    spoil("projection_residual", y);
  }
  void projection_backward(Tensor dy, Tensor x, Tensor weight, Tensor dx, Tensor dweight,
                           device::Accumulate accumulate_dweight) override {
    device::CpuDevice::projection_backward(dy, x, weight, dx, dweight, accumulate_dweight);
    spoil("projection_backward", dx);
    spoil("projection_backward's weight", dweight);
  }
  void gate_up_swiglu(Tensor x, Tensor weight, Tensor gate_up, Tensor activated) override {
    device::CpuDevice::gate_up_swiglu(x, weight, gate_up, activated);
    spoil("gate_up_swiglu", activated);
  }
  void swiglu(Tensor gate_up, Tensor activated) override {
    device::CpuDevice::swiglu(gate_up, activated);
    spoil("swiglu", activated);
  }
  void gate_up_swiglu_backward(Tensor dactivated, Tensor gate_up, Tensor x, Tensor weight, Tensor dx,
                               Tensor dweight, device::Accumulate accumulate_dweight) override {
    device::CpuDevice::gate_up_swiglu_backward(dactivated, gate_up, x, weight, dx, dweight,
                                               accumulate_dweight);
    spoil("gate_up_swiglu_backward", dx);
    spoil("gate_up_swiglu_backward's weight", dweight);
  }
  void head_loss(const device::Batch& batch, Tensor x, Tensor weight, device::StepScalars* scalars,
                 Tensor workspace) override {
    device::CpuDevice::head_loss(batch, x, weight, scalars, workspace);
    if (broken_ == "head_loss") scalars->loss_sum *= 1.05;
  }
  void head_loss_backward(const device::Batch& batch, Tensor x, Tensor weight, device::StepScalars* scalars,
                          Tensor dx, Tensor dweight, device::Accumulate accumulate_dweight,
                          Tensor workspace) override {
    device::CpuDevice::head_loss_backward(batch, x, weight, scalars, dx, dweight, accumulate_dweight,
                                          workspace);
    spoil("head_loss_backward", dx);
    spoil("head_loss_backward's weight", dweight);
    if (broken_ == "head_loss_backward's loss") scalars->loss_sum *= 1.05;
  }
  void max_magnitude(Tensor gradient, std::span<const device::UpdateRange> ranges, Tensor maximum) override {
    device::CpuDevice::max_magnitude(gradient, ranges, maximum);
    spoil("max_magnitude", maximum);
  }
  void sum_squares(Tensor gradient, std::span<const device::UpdateRange> ranges, Tensor maximum,
                   Tensor limbs) override {
    device::CpuDevice::sum_squares(gradient, ranges, maximum, limbs);
    if (broken_ == "sum_squares") limbs.as<std::int64_t>()[0] /= 2;
  }
  void finish_norm(Tensor maximum, Tensor limbs, double max_norm, device::StepScalars* scalars) override {
    device::CpuDevice::finish_norm(maximum, limbs, max_norm, scalars);
    if (broken_ == "finish_norm") scalars->clip_coefficient = 1;
  }
  void adamw(Tensor gradient, std::span<const device::UpdateRange> ranges,
             const device::AdamWConstants& constants, const device::StepScalars* scalars, Tensor master,
             Tensor exp_avg, Tensor exp_avg_sq, Tensor shard) override {
    device::CpuDevice::adamw(gradient, ranges, constants, scalars, master, exp_avg, exp_avg_sq, shard);
    spoil("adamw's master", master);
    spoil("adamw's exp_avg", exp_avg);
    spoil("adamw's exp_avg_sq", exp_avg_sq);
    spoil("adamw's shard", shard);
  }

 private:
  void spoil(const char* what, Tensor result) const {
    if (broken_ == what) leave_out_the_end(result);
  }
  std::string broken_;
};

TEST(DeviceCheck, TheCpuComputesWhatTheReferenceDoes) {
  const auto cpu = device::make_cpu_device(1), reference = device::make_reference_device();
  for (const std::int64_t head_dim : {16, 64, 128}) {
    const auto compared =
        compare_devices(*cpu, *reference, {.head_dim = head_dim, .judge_dtype = DType::float64});
    EXPECT_EQ(failure_of(compared), "") << head_dim;
    EXPECT_GT(compared.size(), 35U);
    for (const auto& tensor : compared) EXPECT_GE(tensor.error, 0) << tensor.name;
  }
}

TEST(DeviceCheck, TheSameDeviceHasNoError) {
  const auto one = device::make_cpu_device(1), other = device::make_cpu_device(1);
  for (const auto& tensor : compare_devices(*one, *other, {})) EXPECT_EQ(tensor.error, 0) << tensor.name;
}

// By more than what bfloat16 is allowed, the widest of all.
TEST(DeviceCheck, NamesWhatABrokenOperationHasWritten) {
  const std::vector<std::pair<std::string, std::string>> broken = {
      {"embedding", "output of model.embed_tokens"},
      {"embedding_backward", "gradient of model.embed_tokens.weight"},
      {"rms_norm", "output of model.layers.0.self_attn"},
      {"rms_norm's statistics", "inverse_rms of model.layers.0.self_attn"},
      {"rms_norm_backward", "gradient before the head"},
      {"rms_norm_backward's weight", "gradient of model.norm.weight"},
      {"qkv_rope", "qkv of model.layers.0.self_attn"},
      {"qkv_rope_backward", "gradient of model.layers.0.input_layernorm.weight"},
      {"qkv_rope_backward's weight", "gradient of model.layers.0.self_attn.v_proj.weight"},
      {"attention", "heads of model.layers.0.self_attn"},
      {"attention's statistics", "log_sum_exp of model.layers.0.self_attn"},
      {"attention_backward", "gradient of model.layers.0.input_layernorm.weight"},
      {"projection_residual", "output of model.layers.0.self_attn"},
      {"projection_backward", "gradient of model.layers.0.post_attention_layernorm.weight"},
      {"projection_backward's weight", "gradient of model.layers.0.mlp.down_proj.weight"},
      {"gate_up_swiglu", "activated of model.layers.0.mlp"},
      {"swiglu", "activated of model.layers.0.mlp, recomputed"},
      {"gate_up_swiglu_backward", "gradient of model.layers.0.post_attention_layernorm.weight"},
      {"gate_up_swiglu_backward's weight", "gradient of model.layers.0.mlp.up_proj.weight"},
      {"head_loss", "loss of an evaluation"},
      {"head_loss_backward", "gradient of model.norm.weight"},
      {"head_loss_backward's weight", "gradient of lm_head.weight"},
      {"head_loss_backward's loss", "loss"},
      {"max_magnitude", "largest gradient of update 1"},
      {"sum_squares", "gradient norm of update 1"},
      {"finish_norm", "clip coefficient of update 1"},
      {"adamw's master", "AdamW's master"},
      {"adamw's exp_avg", "AdamW's exp_avg"},
      {"adamw's exp_avg_sq", "AdamW's exp_avg_sq"},
      {"adamw's shard", "AdamW's shard"},
  };
  const auto judge = device::make_cpu_device(1);
  for (const auto& [operation, tensor] : broken) {
    SCOPED_TRACE(operation);
    BrokenDevice device(operation);
    const auto compared = compare_devices(device, *judge, {});
    const auto failed = std::find_if(compared.begin(), compared.end(), [&](const auto& c) {
      return c.name == tensor && c.error > rounding_explains(DType::bfloat16, false);
    });
    EXPECT_TRUE(failed != compared.end()) << failure_of(compared);
  }
}

TEST(DeviceCheck, SaysWhatDiffersAndByHowMuch) {
  const auto judge = device::make_cpu_device(1);
  BrokenDevice device("head_loss");
  const std::string failure = failure_of(compare_devices(device, *judge, {}));
  EXPECT_THAT(failure, HasSubstr("loss of an evaluation differs by 0.05 of its norm, and rounding explains"));
  EXPECT_EQ(failure_of({{"a", 0.5, 1}, {"b", std::nan(""), 1}}),
            "b differs by nan of its norm, and rounding explains 1");
}

}  // namespace
}  // namespace llampi::selfcheck
