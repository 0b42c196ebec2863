// SPDX-License-Identifier: Apache-2.0
// The graphs of attention, built by the real cuDNN for GPUs that are not here: it says whether it has kernels
// for them, compiles these, and says what workspace they need. What they compute shows on a GPU only
// (tests/gpu).
#include <cudnn.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "device/cuda/attention_sizes.hpp"
#include "device/cuda/cudnn_attention.hpp"

namespace llampi::test {
namespace {

using namespace device;
using namespace device::cuda;

struct Gpu {
  const char* name;
  int compute_capability;  ///< 90 for 9.0
  int multiprocessors;
  int shared_bytes;  ///< that a block can have
};
constexpr Gpu kA100{"NVIDIA A100-SXM4-80GB", 80, 108, 166912};
constexpr Gpu kH100{"NVIDIA H100 80GB HBM3", 90, 132, 232448};
constexpr Gpu kB200{"NVIDIA B200", 100, 148, 232448};
constexpr Gpu kRtx5090{"NVIDIA GeForce RTX 5090", 120, 170, 101376};

/// As cuDNN 9.8 and newer write and read it (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).
std::string properties_of(const Gpu& gpu) {
  return fmt::format(
      R"({{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
      R"("multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
      R"("maxSharedMemoryPerBlockOptin":{},"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)"
      R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
      R"("supportCoopLaunch":1,"smClockRateKHz":1980000,"memClockRateKHz":2619000,"l2CacheSize":52428800,)"
      R"("deviceName":"{}","deviceVer":{},"driverVer":13000,"cudaDeviceId":0,"totalGlobalMem":85029158912,)"
      R"("textureAlignment":512}})",
      gpu.multiprocessors, gpu.shared_bytes, gpu.name, gpu.compute_capability * 10);
}

struct Problem {
  AttentionShape shape;
  std::int64_t tokens, longest, documents;
  DType dtype = DType::bfloat16;
  std::int64_t attention_room = 0;
};

/// Of one GPU, with the workspace that a plan gives.
class Kernels {
 public:
  Kernels(const Gpu& gpu, bool deterministic)
      : attention_(make_cudnn_attention(deterministic, gpu.compute_capability, properties_of(gpu))) {}

  bool forward(const Problem& p) {
    return attention_->supports(
        op::Attention{.documents = documents(p),
                      .shape = p.shape,
                      .qkv = qkv(p),
                      .out = {},
                      .log_sum_exp = {},
                      .workspace = bytes(attention_forward_bytes(p.shape, p.tokens))});
  }
  bool backward(const Problem& p) {
    return attention_->supports(op::AttentionBackward{.documents = documents(p),
                                                      .shape = p.shape,
                                                      .dout = {},
                                                      .qkv = qkv(p),
                                                      .out = {},
                                                      .log_sum_exp = {},
                                                      .dqkv = {},
                                                      .workspace = bytes(backward_bytes(p)),
                                                      .attention_room = p.attention_room});
  }
  std::string why() const { return attention_->describe(); }
  static std::string name() {
    const std::size_t version = cudnnGetVersion();
    return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

 private:
  // Memory that is not there: its sizes are all that counts.
  static Documents documents(const Problem& p) {
    return {.cu_seqlens = {}, .positions = {}, .count = p.documents, .max_seqlen = p.longest};
  }
  /// As model::BatchShape::documents: also for documents that have room where the longest have none.
  static std::int64_t backward_bytes(const Problem& p) {
    std::int64_t bytes = attention_backward_bytes(p.shape, p.tokens, p.longest, p.attention_room);
    for (int c = 0; p.documents * p.longest != p.tokens && LengthClasses::longest(c) < p.longest; ++c)
      bytes = std::max(
          bytes, attention_backward_bytes(p.shape, p.tokens, LengthClasses::longest(c), p.attention_room));
    return bytes;
  }
  static Tensor qkv(const Problem& p) { return {nullptr, p.dtype, p.tokens, p.shape.qkv_cols()}; }
  static Tensor bytes(std::int64_t count) { return {nullptr, DType::int32, 1, count / 4}; }

  std::unique_ptr<CudnnAttention> attention_;
};

constexpr AttentionShape kLlama8B{32, 8, 128};

class CudnnGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cudnnGetVersion() < 91900) GTEST_SKIP() << "cuDNN cannot compile all of this before 9.19";
    static const bool can_compile = [] {
      Kernels kernels(kH100, false);
      return kernels.forward({kLlama8B, 512, 512, 1}) ||
             kernels.why().find("PREREQUISITE_MISSING") == std::string::npos;
    }();
    if (!can_compile)
      GTEST_SKIP() << "cuDNN cannot compile: it finds no NVRTC, or asks more of a driver than driver.cpp has";
  }

  static void expect_gradients(const Gpu& gpu, const Problem& problem) {
    Kernels kernels(gpu, true);
    EXPECT_TRUE(kernels.backward(problem)) << gpu.name << ", " << problem.documents << " of at most "
                                           << problem.longest << ": " << kernels.why();
  }
  static void expect_both(const Gpu& gpu, const Problem& problem) {
    SCOPED_TRACE(fmt::format("{}: {} and {} heads of {}, {} tokens in {} documents of at most {}", gpu.name,
                             problem.shape.query_heads, problem.shape.key_value_heads, problem.shape.head_dim,
                             problem.tokens, problem.documents, problem.longest));
    Kernels kernels(gpu, false);
    EXPECT_TRUE(kernels.forward(problem)) << kernels.why();
    EXPECT_TRUE(kernels.backward(problem)) << kernels.why();
  }
};

TEST_F(CudnnGraphs, AreBuiltForEqualSequences) {
  for (const Gpu& gpu : {kA100, kH100, kB200, kRtx5090}) expect_both(gpu, {kLlama8B, 4096, 2048, 2});
  expect_both(kH100, {{9, 3, 64}, 2000, 1000, 2, DType::float16});
}

TEST_F(CudnnGraphs, AreBuiltForPackedDocuments) {
  expect_both(kH100, {kLlama8B, 4096, 2048, 9});
  expect_both(kH100, {{12, 12, 64}, 512, 512, 5, DType::float16});
}

constexpr AttentionShape kMistral7B{32, 8, 128, 4096}, kNarrow{32, 8, 128, 500};

TEST_F(CudnnGraphs, AreBuiltForWindows) {
  expect_both(kH100, {kMistral7B, 8192, 8192, 1});
  expect_both(kH100, {kNarrow, 4096, 2048, 9});
}

constexpr std::int64_t kWhole = std::int64_t{5} << 30;  // for dP of all heads at 8192 tokens

TEST_F(CudnnGraphs, AreBuiltForDeterministicGradients) {
  expect_gradients(kB200, {kLlama8B, 4096, 2048, 2});
  expect_gradients(kB200, {kLlama8B, 4096, 512, 9});
  for (const Gpu& gpu : {kA100, kH100, kRtx5090}) {
    expect_gradients(gpu, {kLlama8B, 8192, 8192, 1, DType::bfloat16, kWhole});
    expect_gradients(gpu, {kLlama8B, 4096, 2048, 2, DType::bfloat16, kWhole});
  }
  expect_gradients(kH100, {{9, 3, 64}, 2000, 1000, 2, DType::float16, kWhole});
  expect_gradients(kH100, {{12, 12, 64}, 512, 40, 16, DType::float16, kWhole});
}

TEST_F(CudnnGraphs, AreBuiltForDeterministicGradientsWithWindows) {
  expect_gradients(kH100, {kMistral7B, 8192, 8192, 1, DType::bfloat16, kWhole});
  expect_gradients(kH100, {kNarrow, 4096, 700, 9, DType::bfloat16, kWhole});
}

// As above, half a minute more: gpu_cudnn_graphs_whole.
TEST_F(CudnnGraphs, DISABLED_AreBuiltForOtherGpus) {
  expect_both(kB200, {kLlama8B, 4096, 512, 9});
  for (const Gpu& gpu : {kA100, kB200, kRtx5090}) {
    expect_both(gpu, {kMistral7B, 8192, 8192, 1});
    expect_gradients(gpu, {kMistral7B, 8192, 8192, 1, DType::bfloat16, kWhole});
  }
  expect_both(kB200, {kNarrow, 4096, 700, 9});
  expect_gradients(kB200, {kNarrow, 4096, 700, 9, DType::bfloat16, kWhole});
  expect_both(kH100, {{9, 3, 64, 1}, 2000, 1000, 2, DType::float16});
}

// The room that the plan gives is enough for the pieces that it allows, in tokens of sequences and of
// documents.
TEST_F(CudnnGraphs, AreBuiltForPiecesOfDeterministicGradients) {
  struct Case {
    std::int64_t tokens, longest, documents, attention_room;
    const char* expected;
  };
  constexpr std::int64_t kMebi = 1 << 20;
  const Case cases[] = {{8192, 8192, 1, 4096 * kMebi, ""},
                        {8192, 8192, 1, 1100 * kMebi, "backward in 4 pieces"},
                        {8192, 8192, 1, 512 * kMebi, "backward in 8 pieces"},
                        {8192, 2048, 4, 40 * kMebi, "backward in 32 pieces"},
                        {32768, 32768, 1, 8192 * kMebi, "backward in 8 pieces"},
                        {8192, 8192, 61, 1100 * kMebi, "backward in 4 pieces"},
                        {2048, 700, 7, 1100 * kMebi, ""}};
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{} tokens, {} of at most {}", c.tokens, c.documents, c.longest));
    Kernels hopper(kH100, true);
    EXPECT_TRUE(
        hopper.backward({kLlama8B, c.tokens, c.longest, c.documents, DType::bfloat16, c.attention_room}))
        << hopper.why();
    EXPECT_EQ(hopper.why(),
              fmt::format("{}{}", hopper.name(), *c.expected ? fmt::format(" ({})", c.expected) : ""));
  }
}

// Without room for one piece native kernels have these gradients, of documents that are too long or of all, and say so in a
// line.
TEST_F(CudnnGraphs, AreNotBuiltWithoutRoomForDeterministicGradients) {
  constexpr std::int64_t kTooLittle = std::int64_t{511} << 20;
  Kernels hopper(kH100, true);
  EXPECT_TRUE(hopper.forward({kLlama8B, 8192, 8192, 1})) << hopper.why();
  for (const auto& [documents, attention_room] :
       {std::pair{1, std::int64_t{0}}, {1, kTooLittle}, {9, std::int64_t{0}}}) {
    EXPECT_FALSE(hopper.backward({kLlama8B, 8192, 8192, documents, DType::bfloat16, attention_room}));
    EXPECT_NE(hopper.why().find("(backward by native kernels: "), std::string::npos) << hopper.why();
    EXPECT_LE(hopper.why().size(), 200U);
  }
  EXPECT_TRUE(hopper.backward({kLlama8B, 8192, 8192, 9, DType::bfloat16, kTooLittle})) << hopper.why();
  EXPECT_EQ(hopper.why(),
            hopper.name() + " (backward of documents of more than 2048 tokens by native kernels)");
  for (const Gpu& gpu : {kA100, kRtx5090}) {  // cuDNN has none for documents there
    Kernels kernels(gpu, true);
    EXPECT_FALSE(kernels.backward({kLlama8B, 8192, 8192, 9, DType::bfloat16, kWhole})) << gpu.name;
  }
}

TEST_F(CudnnGraphs, AreNotBuiltForWhatCudnnDoesNotTake) {
  Kernels hopper(kH100, false), ampere(kA100, false);
  EXPECT_FALSE(hopper.forward({kLlama8B, 512, 512, 1, DType::float32}));
  EXPECT_FALSE(hopper.forward({{4, 4, 20}, 512, 512, 1})) << "rows that are not aligned to 16 bytes";
  EXPECT_FALSE(hopper.backward({kLlama8B, 64, 1, 64}));
  EXPECT_FALSE(ampere.forward({kLlama8B, 4096, 2048, 9}));
}

}  // namespace
}  // namespace llampi::test
