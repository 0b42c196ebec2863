// SPDX-License-Identifier: Apache-2.0
// The comparison of devices: equal ones pass, and every operation that a step uses is found out when it is
// broken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "llampi/device/device.hpp"
#include "selfcheck/device_check.hpp"

namespace llampi::test {
namespace {

using namespace selfcheck;

using ::testing::HasSubstr;

/// The last sixteenth of a result was never written.
void leave_out_the_end(Tensor result) {
  const std::int64_t first = result.elements() - (result.elements() + 15) / 16;
  const Tensor end = result.slice(first, result.elements());
  std::memset(end.data, 0, static_cast<std::size_t>(end.bytes()));
}

/// A CPU of which one operation is broken, or one of its results.
std::unique_ptr<device::Device> broken_device(const std::string& broken) {
  auto device = device::make_cpu_device(1);
  device->decorate([broken](const device::Operation& operation, const std::function<void()>& issue) {
    if (broken != fmt::format("{} left out", device::name_of(operation))) issue();
    const auto spoil = [&](const std::string& what, Tensor result) {
      if (broken == what) leave_out_the_end(result);
    };
    const auto results = [&](const auto& o) {
      const std::string name = o.kName;
      if constexpr (requires { o.x, o.table, o.tokens; }) spoil(name, o.x);
      if constexpr (requires { o.dtable; }) spoil(name, o.dtable);
      if constexpr (requires { o.eps, o.y; }) spoil(name, o.y), spoil(name + "'s statistics", o.inverse_rms);
      if constexpr (requires { o.residual; }) spoil(name, o.y);
      if constexpr (requires {
                      o.dx;
                      o.dweight;
                    })
        spoil(name + "'s weight", o.dweight);
      if constexpr (
          requires { o.dx; } && !requires { o.dtable; })
        spoil(name, o.dx);
      if constexpr (std::is_same_v<decltype(o), const device::op::WeightGradient&>) spoil(name, o.dweight);
      if constexpr (std::is_same_v<decltype(o), const device::op::RmsNormBackward&>)
        if (o.y) spoil(name + "'s y", o.y);
      if constexpr (std::is_same_v<decltype(o), const device::op::Rope&>) spoil(name, o.qkv);
      if constexpr (std::is_same_v<decltype(o), const device::op::SwigluBackward&>) {
        spoil(name, o.gate_up);
        if (o.activated) spoil(name + "'s activated", o.activated);
      }
      if constexpr (std::is_same_v<decltype(o), const device::op::QkvRope&>) spoil(name, o.qkv);
      if constexpr (std::is_same_v<decltype(o), const device::op::Attention&>)
        spoil(name, o.out), spoil(name + "'s statistics", o.log_sum_exp);
      if constexpr (std::is_same_v<decltype(o), const device::op::AttentionBackward&>) spoil(name, o.dqkv);
      if constexpr (std::is_same_v<decltype(o), const device::op::GateUpSwiglu&>) spoil(name, o.activated);
      if constexpr (std::is_same_v<decltype(o), const device::op::LinearCrossEntropy&>)
        if (broken == name) *o.loss_sum *= 1.05;
      if constexpr (std::is_same_v<decltype(o), const device::op::LinearCrossEntropyBackward&>)
        if (broken == name + "'s loss") *o.loss_sum *= 1.05;
      if constexpr (std::is_same_v<decltype(o), const device::op::SumSquares&>) {
        spoil(name + "'s maximum", o.maximum);
        if (broken == name) o.sum.template as<std::int64_t>()[10] /= 2;
      }
      if constexpr (std::is_same_v<decltype(o), const device::op::FinishNorm&>)
        if (broken == name) o.scalars->clip_coefficient = 1;
      if constexpr (requires { o.master; }) {
        spoil("adamw's master", o.master);
        spoil("adamw's exp_avg", o.exp_avg);
        spoil("adamw's exp_avg_sq", o.exp_avg_sq);
        spoil("adamw's shard", o.shard);
      }
    };
    std::visit(results, operation);
  });
  return device;
}

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

TEST(DeviceCheck, TheCpuComputesOtherFamiliesAsTheReferenceDoes) {
  const auto cpu = device::make_cpu_device(1), reference = device::make_reference_device();
  for (const auto& family : model::architectures()) {
    const auto compared = compare_devices(
        *cpu, *reference,
        {.head_dim = 64, .architecture = &family, .window = kCheckWindow, .judge_dtype = DType::float64});
    EXPECT_EQ(failure_of(compared), "") << family.model_type;
    EXPECT_EQ(std::ranges::count(compared, "gradient of model.layers.0.self_attn.q_proj.bias",
                                 &ComparedTensor::name),
              family.qkv_bias ? 1 : 0);
    EXPECT_EQ(std::ranges::count(compared, "gradient of model.layers.0.self_attn.k_norm.weight",
                                 &ComparedTensor::name),
              family.qk_norms ? 1 : 0);
  }
}

TEST(DeviceCheck, TheCpuComputesAdaptersOfOtherFamiliesAsTheReferenceDoes) {
  const auto cpu = device::make_cpu_device(1), reference = device::make_reference_device();
  for (const auto& family : model::architectures().subspan(1)) {
    EXPECT_EQ(failure_of(compare_devices(*cpu, *reference,
                                         {.head_dim = 64,
                                          .architecture = &family,
                                          .judge_dtype = DType::float64,
                                          .lora = lora_check_config(4, 0.25)})),
              "")
        << family.model_type;
  }
}

TEST(DeviceCheck, TheCpuComputesAdaptersAsTheReferenceDoes) {
  const auto cpu = device::make_cpu_device(1), reference = device::make_reference_device();
  const auto compared = compare_devices(
      *cpu, *reference, {.head_dim = 64, .judge_dtype = DType::float64, .lora = lora_check_config(4, 0.25)});
  EXPECT_EQ(failure_of(compared), "");
  EXPECT_EQ(std::ranges::count_if(compared,
                                  [](const auto& c) { return c.name.find(".lora_") != std::string::npos; }),
            2 * 2 * 7)
      << "with what was saved, and with what is recomputed";
}

TEST(DeviceCheck, NamesTheGradientOfAnAdapterThatIsWrong) {
  const auto judge = device::make_cpu_device(1), device = device::make_cpu_device(1);
  device->decorate([](const device::Operation& operation, const std::function<void()>& issue) {
    issue();
    if (const auto* const o = std::get_if<device::op::WeightGradient>(&operation)) {
      for (const auto& l : o->adapters) leave_out_the_end(l.da);
    }
  });
  const auto compared = compare_devices(*device, *judge, {.lora = lora_check_config(4, 0.25)});
  const auto failed = std::ranges::find(compared, "gradient of model.layers.0.mlp.down_proj.lora_A.weight",
                                        &ComparedTensor::name);
  ASSERT_NE(failed, compared.end());
  EXPECT_GT(failed->error, adapters_rounding_explains(DType::bfloat16, false));
}

TEST(DeviceCheck, NoticesAWrongCastFromBlocksOf8Bits) {
  const auto judge = device::make_cpu_device(1), device = device::make_cpu_device(1);
  device->decorate([](const device::Operation& operation, const std::function<void()>& issue) {
    issue();
    const auto* const o = std::get_if<device::op::Cast>(&operation);
    if (o != nullptr && o->source.dtype == DType::int8_blocks) leave_out_the_end(o->destination);
  });
  EXPECT_THAT(failure_of(compare_devices(*device, *judge, {.lora = lora_check_config(4, 0)})),
              HasSubstr("cast from blocks of 8 bits: relative error 0.25"));
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
      {"rms_norm_backward's y", "normed of model.layers.0.self_attn, recomputed"},
      {"rms_norm_backward's y", "gradient of model.layers.0.self_attn.v_proj.weight, recomputed"},
      {"rope", "gradient of model.layers.0.input_layernorm.weight"},
      {"attention", "heads of model.layers.0.self_attn"},
      {"attention's statistics", "log_sum_exp of model.layers.0.self_attn"},
      {"attention_backward", "gradient of model.layers.0.input_layernorm.weight"},
      {"projection_residual", "output of model.layers.0.self_attn"},
      {"input_gradient", "gradient of model.layers.0.input_layernorm.weight"},
      {"input_gradient", "gradient of model.layers.0.post_attention_layernorm.weight"},
      {"weight_gradient", "gradient of model.layers.0.self_attn.v_proj.weight"},
      {"weight_gradient", "gradient of model.layers.0.mlp.down_proj.weight"},
      {"gate_up_swiglu", "activated of model.layers.0.mlp"},
      {"swiglu_backward", "gradient of model.layers.0.mlp.up_proj.weight"},
      {"swiglu_backward's activated", "activated of model.layers.0.mlp, recomputed"},
      {"swiglu_backward's activated", "gradient of model.layers.0.mlp.down_proj.weight, recomputed"},
      {"swiglu_backward left out", "activated of model.layers.0.mlp, recomputed"},
      {"linear_cross_entropy", "loss of an evaluation"},
      {"linear_cross_entropy_backward", "gradient of model.norm.weight"},
      {"linear_cross_entropy_backward's weight", "gradient of lm_head.weight"},
      {"linear_cross_entropy_backward's loss", "loss"},
      {"sum_squares's maximum", "largest gradient of update 1"},
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
    const auto device = broken_device(operation);
    const auto compared = compare_devices(*device, *judge, {});
    const auto failed = std::find_if(compared.begin(), compared.end(), [&](const auto& c) {
      return c.name == tensor && !(c.error <= rounding_explains(DType::bfloat16, false));
    });
    EXPECT_TRUE(failed != compared.end()) << failure_of(compared);
  }
}

TEST(DeviceCheck, SaysWhatDiffersAndByHowMuch) {
  const auto judge = device::make_cpu_device(1);
  const auto device = broken_device("linear_cross_entropy");
  const std::string failure = failure_of(compare_devices(*device, *judge, {}));
  EXPECT_THAT(failure, HasSubstr("loss of an evaluation: relative error 0.05, and rounding explains"));
  EXPECT_EQ(failure_of({{"a", 0.5, 1}, {"b", std::nan(""), 1}}),
            "b: relative error nan, and rounding explains 1");
}

}  // namespace
}  // namespace llampi::test
