// SPDX-License-Identifier: Apache-2.0
// The comparison of a GPU with the CPU, which runs begin with.
#include <algorithm>
#include <cstring>

#include "gpu/gpu_fixture.hpp"
#include "selfcheck/device_check.hpp"

namespace llampi::test {
namespace {

class GpuCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    gpu_ = make_gpu({}, why);
    if (!gpu_) GTEST_SKIP() << "no GPU to test: " << why;
  }
  void TearDown() override { work_orders().front().set(); }

  std::unique_ptr<device::Device> gpu_, host_ = device::make_cpu_device(1);
};

TEST_F(GpuCheck, PassesInEveryDtype) {
  const auto orders = work_orders();
  for (const DType dtype : kGpuTypes) {
    const std::int64_t head_dim = dtype == DType::bfloat16 ? 128 : 64;
    SCOPED_TRACE(to_string(dtype));
    orders[static_cast<std::size_t>(dtype) % orders.size()].set();
    const auto compared = selfcheck::compare_devices(*gpu_, *host_, {.dtype = dtype, .head_dim = head_dim});
    EXPECT_EQ(selfcheck::failure_of(compared), "");
    const auto worst = std::max_element(compared.begin(), compared.end(), [](const auto& a, const auto& b) {
      return a.error / a.allowed < b.error / b.allowed;
    });
    fmt::print("{}: {} differs most, by {:.2g} of {:.2g}\n", to_string(dtype), worst->name, worst->error,
               worst->allowed);
    // What the device rounds shows: it did compute in this dtype.
    EXPECT_GT(worst->error, dtype == DType::float32 ? 0 : worst->allowed / 100);
  }
}

TEST_F(GpuCheck, PassesWithWhatOtherFamiliesHave) {
  for (const auto& family : model::architectures().subspan(1)) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      SCOPED_TRACE(fmt::format("{} in {}", family.model_type, to_string(dtype)));
      const auto compared = selfcheck::compare_devices(
          *gpu_, *host_,
          {.dtype = dtype, .head_dim = 64, .architecture = &family, .window = selfcheck::kCheckWindow});
      EXPECT_EQ(selfcheck::failure_of(compared), "");
      const auto worst = std::ranges::max_element(compared, {}, [](const auto& tensor) {
        return tensor.allowed > 0 ? tensor.error / tensor.allowed : 0;
      });
      fmt::print("{} in {}: {} differs most, by {:.2g} of {:.2g}\n", family.model_type, to_string(dtype),
                 worst->name, worst->error, worst->allowed);
    }
  }
}

TEST_F(GpuCheck, PassesWithAdapters) {
  for (const DType dtype : kGpuTypes) {
    for (const double dropout : {0.0, 0.25}) {
      if (dropout == 0 && dtype != DType::bfloat16) continue;
      SCOPED_TRACE(fmt::format("{}, dropout {}", to_string(dtype), dropout));
      const auto compared = selfcheck::compare_devices(
          *gpu_, *host_, {.dtype = dtype, .head_dim = 64, .lora = selfcheck::lora_check_config(8, dropout)});
      EXPECT_EQ(selfcheck::failure_of(compared), "");
      const auto worst = std::ranges::max_element(compared, {}, [](const auto& tensor) {
        return tensor.allowed > 0 ? tensor.error / tensor.allowed : 0;
      });
      fmt::print("{}, dropout {}: {} differs most, by {:.2g} of {:.2g}\n", to_string(dtype), dropout,
                 worst->name, worst->error, worst->allowed);
    }
  }
}

// Adapters add before biases and norms of heads.
TEST_F(GpuCheck, PassesWithAdaptersOfOtherFamilies) {
  for (const auto& family : model::architectures().subspan(1)) {
    SCOPED_TRACE(family.model_type);
    const auto compared = selfcheck::compare_devices(*gpu_, *host_,
                                                     {.head_dim = 64,
                                                      .architecture = &family,
                                                      .window = selfcheck::kCheckWindow,
                                                      .lora = selfcheck::lora_check_config(8, 0.25)});
    EXPECT_EQ(selfcheck::failure_of(compared), "");
  }
}

TEST_F(GpuCheck, PassesWithProductsIn8Bits) {
  const auto orders = work_orders();
  for (const model::Fp8Recipe& recipe :
       {model::Fp8Recipe{DType::float8_e5m2}, model::Fp8Recipe{DType::float8_e4m3fn},
        model::Fp8Recipe{DType::float8_e5m2, model::Fp8Scales::block},
        model::Fp8Recipe{DType::float8_e4m3fn, model::Fp8Scales::block}}) {
    const std::string name = fmt::format("{}, {}", to_string(recipe.gradient), word_of(recipe.scales));
    SCOPED_TRACE(name);
    orders[static_cast<std::size_t>(recipe.gradient) % orders.size()].set();
    auto options = selfcheck::fp8_check_options(DType::bfloat16, recipe);
    if (recipe.gradient == DType::float8_e4m3fn)
      options.head_dim = 80;  // that four heads of are no multiple of 128
    const auto compared = selfcheck::compare_devices(*gpu_, *host_, options);
    EXPECT_EQ(selfcheck::failure_of(compared), "");
    const auto worst = std::ranges::max_element(compared, {}, [](const auto& tensor) {
      return tensor.allowed > 0 ? tensor.error / tensor.allowed : 0;
    });
    fmt::print("gradients in {}: {} differs most, by {:.2g} of {:.2g}\n", name, worst->name, worst->error,
               worst->allowed);
  }
}

// On a GPU with cuDNN; pieces_test.cpp has it on the emulated one.
TEST_F(GpuCheck, ComparesAttentionInPiecesOrSaysThatThereAreNone) {
  const selfcheck::DeviceCheckOptions options{
      .dtype = DType::bfloat16, .head_dim = 64, .seq_len = selfcheck::kPiecesSeqLen};
  for (const auto& pieces : selfcheck::compare_pieces(*gpu_, options)) {
    EXPECT_EQ(selfcheck::failure_of(pieces.tensors), "");
    EXPECT_NE(pieces.tensors.empty(), pieces.why_none.empty()) << pieces.kind;
    fmt::print("{}: {} tensors {}\n", pieces.kind, pieces.tensors.size(), pieces.why_none);
  }
  std::string why;
  const auto native = make_gpu({.attention = device::GpuAttention::native}, why);
  const auto compared = selfcheck::compare_pieces(*native, options);
  EXPECT_EQ(compared.size(), 4U);
  for (const auto& pieces : compared) {
    EXPECT_TRUE(pieces.tensors.empty()) << "native kernels compared with themselves";
    EXPECT_TRUE(pieces.why_none.ends_with("attention native")) << pieces.why_none;
  }
}

}  // namespace
}  // namespace llampi::test
