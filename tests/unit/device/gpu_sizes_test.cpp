// SPDX-License-Identifier: Apache-2.0
// What is known of GPUs without one: scratch memory and peaks.
#include <gtest/gtest.h>

#include "llampi/device/device.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kMebi = 1 << 20;

TEST(GpuSizes, KeepTheLogitsOfALargeVocabularyInBounds) {
  const auto sizes = device::make_gpu_sizes();
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const std::int64_t whole =
        sizes->linear_cross_entropy_workspace(65536, 128256, dtype, device::kLogitsBytes);
    EXPECT_LE(whole, 1025 * kMebi);
    EXPECT_GE(whole, 512 * kMebi);  // short chunks read and write the gradient of the weight too often
    EXPECT_EQ(whole, sizes->linear_cross_entropy_workspace(8192, 128256, dtype, device::kLogitsBytes));
    // As much as there is memory for.
    const std::int64_t row = (128256 * size_of(dtype) + 127) / 128 * 128;
    const auto with = [&](std::int64_t logits_bytes) {
      return sizes->linear_cross_entropy_workspace(8192, 128256, dtype, logits_bytes);
    };
    EXPECT_EQ(with(8192 * row), 8192 * row + 8192 * 4);
    EXPECT_EQ(with(16384 * row), 8192 * row + 8192 * 4);
    EXPECT_EQ(with(8192 * row - 1), (8192 - 128) * row + (8192 - 128) * 4);
    EXPECT_EQ(with(0), row + 256);
    const auto of_all = [&](std::int64_t tokens) {
      return sizes->linear_cross_entropy_workspace(tokens, 128256, dtype, std::int64_t{1} << 60);
    };
    EXPECT_EQ(of_all(8000), 8000 * row + 8000 * 4) << "no whole tiles";
    EXPECT_EQ(of_all(32768), 16640 * (row + 4)) << "fewer than 2^31 logits";
    // One row at least, however wide.
    EXPECT_GE(sizes->linear_cross_entropy_workspace(1, 512 * kMebi, dtype, device::kLogitsBytes),
              512 * kMebi * size_of(dtype));
  }
}

TEST(GpuSizes, GrowWithTheTokensAndNotWithTheirSquare) {
  const auto sizes = device::make_gpu_sizes();
  const device::AttentionShape shape{32, 8, 128};
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const auto bytes = [&](std::int64_t tokens) {
      return sizes->attention_workspace(shape, tokens, tokens, dtype) +
             sizes->attention_backward_workspace(shape, tokens, tokens, dtype, 0);
    };
    EXPECT_GT(bytes(8192), bytes(4096));
    EXPECT_LE(bytes(8192), 2 * bytes(4096));
    // A gradient of the queries in float32, statistics, and little else: a sixteenth of the scores.
    EXPECT_LE(bytes(8192), 32 * std::int64_t{8192} * 8192 * 4 / 8);
    EXPECT_LE(sizes->rms_norm_backward_workspace(1 << 20, 4096, dtype), 16 * kMebi);
  }
  EXPECT_EQ(sizes->shared_workspace(), 64 * kMebi);
}

// Heads x sequences x longest^2 numbers of 16 bits, of as many sequences or heads as there is room for.
TEST(GpuSizes, GiveDeterministicAttentionWhatItsPiecesTake) {
  const auto sizes = device::make_gpu_sizes();
  const device::AttentionShape shape{32, 8, 128};
  const auto bytes = [&](std::int64_t tokens, std::int64_t longest, std::int64_t room) {
    return sizes->attention_backward_workspace(shape, tokens, longest, DType::bfloat16, room);
  };
  const std::int64_t whole = 4096 * kMebi, rest = bytes(8192, 8192, whole) - whole;
  EXPECT_GT(rest, 0);
  EXPECT_LE(rest, bytes(8192, 8192, 0));
  EXPECT_EQ(bytes(8192, 8192, 16 * whole), whole + rest);
  EXPECT_EQ(bytes(8192, 8192, whole - 1), whole / 2 + rest);
  EXPECT_EQ(bytes(8192, 8192, whole / 8), whole / 8 + rest);  // one key/value head with its four
  EXPECT_EQ(bytes(8192, 8192, whole / 8 - 1), bytes(8192, 8192, 0));
  EXPECT_EQ(bytes(8192, 2048, 16 * whole), whole / 4 + rest);  // four sequences
  EXPECT_EQ(sizes->attention_backward_workspace(shape, 8192, 8192, DType::float32, whole),
            bytes(8192, 8192, 0));
}

TEST(GpuSizes, RefuseWhatHasNoKernels) {
  const auto sizes = device::make_gpu_sizes();
  const device::AttentionShape shape{2, 1, 64};
  EXPECT_THROW(sizes->attention_workspace(shape, 8, 8, DType::float64), Error);
  EXPECT_THROW(sizes->attention_backward_workspace(shape, 8, 8, DType::float64, 0), Error);
  EXPECT_THROW(sizes->rms_norm_backward_workspace(8, 8, DType::float64), Error);
  EXPECT_THROW(sizes->linear_cross_entropy_workspace(8, 8, DType::int32, device::kLogitsBytes), Error);
}

TEST(GpuPeak, IsFoundByTheNameThatTheDriverGives) {
  const auto tera = [](const char* name, DType dtype) { return device::peak_flops(name, dtype) / 1e12; };
  EXPECT_EQ(tera("NVIDIA A100-SXM4-80GB", DType::bfloat16), 312);
  EXPECT_EQ(tera("NVIDIA H100 80GB HBM3", DType::bfloat16), 989.4);
  EXPECT_EQ(tera("NVIDIA H100 PCIe", DType::float16), 756.5);
  EXPECT_EQ(tera("NVIDIA H100 NVL", DType::bfloat16), 835.5);
  EXPECT_EQ(tera("NVIDIA H200", DType::bfloat16), 989.4);
  EXPECT_EQ(tera("NVIDIA H200", DType::float32), 67);
  EXPECT_EQ(tera("NVIDIA H200 NVL", DType::bfloat16), 835.5);
  EXPECT_EQ(tera("NVIDIA GH200 480GB", DType::bfloat16), 989.4);
  EXPECT_EQ(tera("NVIDIA B200", DType::bfloat16), 2250);
  EXPECT_EQ(tera("NVIDIA GB200", DType::bfloat16), 2500);
  EXPECT_EQ(tera("NVIDIA L40S", DType::bfloat16), 362.05);
  EXPECT_EQ(tera("NVIDIA RTX A6000", DType::bfloat16), 154.8);
  EXPECT_EQ(tera("NVIDIA GeForce RTX 4090", DType::bfloat16), 165.2);
  EXPECT_EQ(device::peak_flops("NVIDIA GeForce GTX 1080", DType::bfloat16), 0);
  EXPECT_EQ(device::peak_flops("NVIDIA H200", DType::float64), 0);
}

TEST(KnownGpus, HaveMemoryAndPeaksAndAreFoundByTheNameOfTheDriver) {
  for (const device::KnownGpu& gpu : device::known_gpus()) {
    SCOPED_TRACE(std::string(gpu.key));
    EXPECT_GE(gpu.memory_bytes, std::int64_t{16} << 30);
    EXPECT_LE(gpu.memory_bytes, std::int64_t{256} << 30);
    EXPECT_EQ(device::peak_flops("NVIDIA " + std::string(gpu.driver_name), DType::bfloat16),
              gpu.half_teraflops * 1e12);
  }
}

TEST(KnownGpus, HaveProductsIn8BitsFromAdaOn) {
  for (const device::KnownGpu& gpu : device::known_gpus()) {
    const bool ampere = gpu.key.starts_with("a100") || gpu.key == "a6000";
    EXPECT_EQ(device::has_fp8_products(gpu.major, gpu.minor), !ampere) << gpu.key;
  }
  EXPECT_FALSE(device::has_fp8_products(7, 9));
}

TEST(KnownGpus, HaveProductsWithScalesOfBlocksOnHopperAlone) {
  EXPECT_TRUE(device::has_fp8_block_products(9, 0));
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 1}, {10, 0}, {12, 0}})
    EXPECT_FALSE(device::has_fp8_block_products(major, minor)) << major << "." << minor;
}

}  // namespace
}  // namespace llampi::test
