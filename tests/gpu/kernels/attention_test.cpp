// SPDX-License-Identifier: Apache-2.0
// The own attention kernels beyond what every GPU reaches: head sizes and groups, both tiles of keys of the
// backward pass, documents that begin anywhere.
#include <algorithm>
#include <cmath>

#include "device/cuda/attention.cuh"
#include "device/cuda/cuda_device.hpp"
#include "emulator/control.hpp"
#include "support/device_session.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

constexpr std::size_t kAnyGpu = std::size_t{99} << 10, kHopper = std::size_t{227} << 10;

struct Results {
  Values out, log_sum_exp, dqkv;
};

/// Inputs in float64; the seed is device_session.hpp's.
struct Inputs {
  Inputs(const Layout& layout_, device::AttentionShape shape_)
      : layout(layout_),
        shape(shape_),
        qkv(normal(layout.tokens(), shape.qkv_cols(), "qkv")),
        dout(normal(layout.tokens(), shape.query_cols(), "dout")) {}
  Layout layout;
  device::AttentionShape shape;
  Values qkv, dout;
};

/// By the reference, from inputs rounded to `dtype`.
Results reference(const Inputs& in, DType dtype) {
  const auto device = device::make_reference_device();
  Session s(*device, DType::float64, Weights::trained, dtype);
  const device::Batch batch = s.batch(in.layout);
  const std::int64_t tokens = in.layout.tokens(), longest = in.layout.longest();
  const Tensor qkv = s.upload(in.qkv), out = s.output(tokens, in.shape.query_cols());
  const Tensor log_sum_exp = s.wide_output(in.shape.query_heads, tokens);
  const Tensor dqkv = s.output(tokens, in.shape.qkv_cols());
  device->run(device::op::Attention{.documents = documents_of(batch, longest),
                                    .shape = in.shape,
                                    .qkv = qkv,
                                    .out = out,
                                    .log_sum_exp = log_sum_exp,
                                    .workspace = {}});
  device->run(device::op::AttentionBackward{.documents = documents_of(batch, longest),
                                            .shape = in.shape,
                                            .dout = s.upload(in.dout),
                                            .qkv = qkv,
                                            .out = out,
                                            .log_sum_exp = log_sum_exp,
                                            .dqkv = dqkv,
                                            .workspace = {}});
  return {s.download(out), s.download(log_sum_exp), s.download(dqkv)};
}

/// By native kernels on a GPU whose blocks have so much shared memory. Outputs are NaN before.
Results own(const Inputs& in, DType dtype, std::size_t shared_bytes, int not_asked = 0) {
  using namespace device::cuda;
  device::cuda::CudaDevice device({.attention = device::GpuAttention::native});
  Session s(device, dtype);
  const device::Batch batch = s.batch(in.layout);
  const std::int64_t tokens = in.layout.tokens();
  const Tensor qkv = s.upload(in.qkv), dout = s.upload(in.dout),
               out = s.output(tokens, in.shape.query_cols());
  const Tensor log_sum_exp = s.wide_output(in.shape.query_heads, tokens);
  const Tensor dqkv = s.output(tokens, in.shape.qkv_cols()),
               delta = s.wide_output(in.shape.query_heads, tokens);
  device::cuda::AttentionProblem problem =
      device::cuda::attention_problem(documents_of(batch, in.layout.longest()), in.shape);
  problem.not_asked = not_asked;
  device::cuda::AttentionOperands operands{dtype,     qkv.data,  out.data,         log_sum_exp.as<float>(),
                                           dout.data, dqkv.data, delta.as<float>()};
  const cudaStream_t stream = device.stream(device::Stream::compute);
  device.wait(device::Stream::compute, device.record(kCopy));
  const bool fast = device::cuda::fits_tensor_cores(problem, dtype);
  fast ? device::cuda::tensor_attention(problem, operands, stream)
       : device::cuda::plain_attention(problem, operands, stream);
  device::cuda::attention_delta(problem, operands, stream);
  if (fast) {
    device::cuda::tensor_attention_backward(problem, operands, shared_bytes, stream);
  } else {
    device::cuda::plain_attention_backward(problem, operands, stream);
  }
  device.wait(kCopyOut, device.record(device::Stream::compute));
  return {s.download(out), s.download(log_sum_exp), s.download(dqkv)};
}

/// u: unit roundoff of dtype; sums in float32 lose 2 eps sqrt(terms) (cpu_test.cpp), and the exponential's
/// two units in the last place and its argument's rounding, of a score of at most 16, another 20 eps. out:
/// probabilities are rounded once, the output once: 2 u. dV alike. dQ, dK: dS is rounded once, the output
/// once, and delta is computed from the rounded output, an error of the size of one more rounding of dP: 3 u.
/// log_sum_exp stays in float32.
void expect_close(const Results& actual, const Results& expected, const Inputs& in, DType dtype) {
  const std::int64_t terms =
      std::max(in.layout.longest() * in.shape.query_heads / in.shape.key_value_heads, in.shape.head_dim);
  const double sums = (2 * std::sqrt(static_cast<double>(terms)) + 20) * kEpsilon;
  const double u = dtype == DType::float32 ? kEpsilon : unit_roundoff(dtype);
  EXPECT_TRUE(close(actual.log_sum_exp, expected.log_sum_exp, sums));
  EXPECT_TRUE(close(actual.out, expected.out, 2 * u + sums));
  EXPECT_TRUE(close(actual.dqkv, expected.dqkv, 3 * u + sums));
}

void expect_like_reference(const Layout& layout, device::AttentionShape shape) {
  const Inputs in(layout, shape);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    SCOPED_TRACE(fmt::format("{}, {} heads over {} of {}, {}, seed {}", layout.name, shape.query_heads,
                             shape.key_value_heads, shape.head_dim, to_string(dtype), kSeed));
    const Results expected = reference(in, dtype);
    expect_close(own(in, dtype, kHopper), expected, in, dtype);
    if (dtype == DType::float32) continue;
    emulator::set_thread_order(emulator::ThreadOrder::random, kSeed);
    expect_close(own(in, dtype, kAnyGpu), expected, in, dtype);
    emulator::set_thread_order(emulator::ThreadOrder::forward);
  }
}

TEST(EmulatedAttention, HeadSizes) {
  for (const std::int64_t dim : {8, 16, 24, 32, 64, 96, 128})
    expect_like_reference(mixed_documents(150), {3, 3, dim});
  expect_like_reference(mixed_documents(40), {2, 1, 136});
  expect_like_reference(mixed_documents(40), {2, 1, 256});
}

// Tiles of 128 queries and of 64 or 128 keys that have only shorter documents are left as they were.
TEST(EmulatedAttention, LeavesShortDocumentsAlone) {
  const Inputs in({"documents", {130, 200, 126, 130, 131, 67}}, {2, 1, 32});
  const std::int64_t long_ones[][2] = {{130, 330}, {586, 717}};
  for (const std::size_t shared_bytes : {kHopper, kAnyGpu}) {
    const Values all = own(in, DType::bfloat16, shared_bytes).dqkv,
                 some = own(in, DType::bfloat16, shared_bytes, 130).dqkv;
    std::int64_t left_alone = 0;
    for (std::int64_t token = 0; token < in.layout.tokens(); ++token) {
      const bool asked =
          std::ranges::any_of(long_ones, [&](const auto& of) { return of[0] <= token && token < of[1]; });
      for (std::int64_t column = 0; column < all.cols; ++column) {
        const auto i = static_cast<std::size_t>(token * all.cols + column);
        left_alone += std::isnan(some.data[i]) ? 1 : 0;
        if (!std::isnan(some.data[i]) || asked) {
          ASSERT_EQ(some.data[i], all.data[i]) << token << ", " << column;
        }
      }
    }
    EXPECT_GE(left_alone, 128 * all.cols) << "the first tile has none, and one in the middle";
  }
}

TEST(EmulatedAttention, Groups) {
  expect_like_reference(mixed_documents(137), {3, 1, 64});
  expect_like_reference(mixed_documents(137), {8, 2, 32});
}

TEST(EmulatedAttention, LongDocument) {
  expect_like_reference(one_document(128), {1, 1, 32});
  expect_like_reference(one_document(300), {2, 1, 32});
  expect_like_reference(one_document(261), {2, 1, 128});
}

// Documents that begin and end at, just before and just after the edges of tiles.
TEST(EmulatedAttention, EdgesOfTiles) {
  expect_like_reference({"edges", {63, 1, 1, 63, 128, 65, 31, 33, 2}}, {2, 1, 32});
  expect_like_reference({"short ones", std::vector<std::int32_t>(45, 3)}, {2, 1, 32});
  expect_like_reference(single_tokens(140), {2, 1, 32});
}

// Windows of one token, at, before and after the edges of tiles, and longer than the documents.
TEST(EmulatedAttention, Windows) {
  for (const std::int64_t window : {1, 2, 31, 33, 64, 65, 129, 1000}) {
    expect_like_reference(one_document(300), {2, 1, 32, window});
    expect_like_reference({"edges", {63, 1, 1, 63, 128, 65, 31, 33, 2}}, {2, 1, 32, window});
  }
  expect_like_reference(mixed_documents(150), {3, 3, 128, 20});
  expect_like_reference(mixed_documents(150), {3, 1, 136, 20});
}

TEST(EmulatedAttention, AWindowThatHoldsAllHasTheSameBits) {
  const Inputs all(mixed_documents(150), {4, 2, 32}), wide(all.layout, {4, 2, 32, all.layout.longest()});
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Results expected = own(all, dtype, kHopper), actual = own(wide, dtype, kHopper);
    EXPECT_TRUE(same_bits(actual.out, expected.out));
    EXPECT_TRUE(same_bits(actual.log_sum_exp, expected.log_sum_exp));
    EXPECT_TRUE(same_bits(actual.dqkv, expected.dqkv));
  }
}

/// Rows [begin, end) of each.
Results rows_of(const Results& all, std::int64_t begin, std::int64_t end) {
  const auto cut = [&](const Values& v) {
    return Values{end - begin, v.cols, {v.data.begin() + begin * v.cols, v.data.begin() + end * v.cols}};
  };
  Values sums{all.log_sum_exp.rows, end - begin, {}};
  for (std::int64_t h = 0; h < sums.rows; ++h) {
    const auto row = all.log_sum_exp.data.begin() + h * all.log_sum_exp.cols;
    sums.data.insert(sums.data.end(), row + begin, row + end);
  }
  return {cut(all.out), sums, cut(all.dqkv)};
}

// Tiles outside of the band are not computed: NaN there would reach all rows of a block.
TEST(EmulatedAttention, WhatIsFarOutsideOfTheWindowDoesNotMatter) {
  const Inputs clean(one_document(520), {2, 1, 32, 20});
  Inputs broken = clean;
  std::fill_n(broken.qkv.data.begin(), 100 * broken.qkv.cols, std::nan(""));
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Results expected = rows_of(own(clean, dtype, kAnyGpu), 256, 520),
                  actual = rows_of(own(broken, dtype, kAnyGpu), 256, 520);
    EXPECT_TRUE(same_bits(actual.out, expected.out));
    EXPECT_TRUE(same_bits(actual.log_sum_exp, expected.log_sum_exp));
    EXPECT_TRUE(same_bits(actual.dqkv, expected.dqkv));
  }
}

// What a document gets does not depend on its neighbours, to the bit, in both directions.
void expect_neighbours_not_to_matter(const device::AttentionShape& shape) {
  for (const std::int32_t before : {1, 70, 129}) {
    const Inputs both({"both", {before, 200, 5}}, shape);
    Inputs alone(one_document(200), shape);
    const auto cut = [&](const Values& v) {
      return Values{
          200, v.cols, {v.data.begin() + before * v.cols, v.data.begin() + (before + 200) * v.cols}};
    };
    alone.qkv = cut(both.qkv);
    alone.dout = cut(both.dout);
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      SCOPED_TRACE(fmt::format("behind {} tokens, {}", before, to_string(dtype)));
      const Results actual = rows_of(own(both, dtype, kHopper), before, before + 200);
      const Results expected = own(alone, dtype, kHopper);
      EXPECT_TRUE(same_bits(actual.out, expected.out));
      EXPECT_TRUE(same_bits(actual.log_sum_exp, expected.log_sum_exp));
      EXPECT_TRUE(same_bits(actual.dqkv, expected.dqkv));
    }
  }
}

TEST(EmulatedAttention, NeighboursDoNotMatter) {
  expect_neighbours_not_to_matter({4, 2, 32});
  expect_neighbours_not_to_matter({4, 2, 32, 50});
}

}  // namespace
}  // namespace llampi::test
