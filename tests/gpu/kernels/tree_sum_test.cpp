// SPDX-License-Identifier: Apache-2.0
// Sums over ranks by themselves, against the tree as comm::tree_left() says it.
#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "device/cuda/cuda_device.hpp"
#include "llampi/comm/sum_tree.hpp"
#include "llampi/core/half.hpp"
#include "support/rank_values.hpp"

namespace llampi::test {
namespace {

constexpr float kBehind = 77;

float rounded(DType dtype, float x) {
  if (dtype == DType::bfloat16) return from_bfloat16(to_bfloat16(x));
  if (dtype == DType::float16) return from_float16(to_float16(x));
  return x;
}

/// What a rank has: within float16's range.
float part(DType dtype, int rank, std::int64_t i) { return rounded(dtype, value<float>(rank, i) * 0x1p-12F); }

float tree_of_parts(DType dtype, std::int64_t i, int first, std::int64_t count) {
  if (count == 1) return part(dtype, first, i);
  const std::int64_t left = comm::tree_left(count);
  return tree_of_parts(dtype, i, first, left) +
         tree_of_parts(dtype, i, first + static_cast<int>(left), count - left);
}

class TreeSum : public ::testing::Test {
 protected:
  /// On the GPU, an element more than `values`.
  struct Row {
    Row(device::Device& device, DType of, std::vector<float> values)
        : memory(device.allocate((std::ssize(values) + 1) * size_of(of))), dtype(of) {
      values.push_back(kBehind);
      const Tensor all = tensor(std::ssize(values));
      std::vector<std::uint16_t> narrow;
      for (const float x : values)
        narrow.push_back(dtype == DType::bfloat16 ? to_bfloat16(x) : to_float16(x));
      device.upload(all, dtype == DType::float32 ? static_cast<const void*>(values.data()) : narrow.data(),
                    device::Stream::compute);
      device.synchronize(device::Stream::compute);
    }
    Tensor tensor(std::int64_t elements) const { return {memory.data(), dtype, 1, elements}; }
    device::Memory memory;
    DType dtype;
  };

  std::vector<float> download(Tensor t) {
    std::vector<std::uint32_t> wide(static_cast<std::size_t>(t.elements()));
    std::vector<std::uint16_t> narrow(wide.size());
    const bool is_wide = t.dtype == DType::float32;
    gpu.download(is_wide ? static_cast<void*>(wide.data()) : narrow.data(), t, device::Stream::compute);
    gpu.synchronize(device::Stream::compute);
    std::vector<float> values;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      values.push_back(is_wide                      ? std::bit_cast<float>(wide[i])
                       : t.dtype == DType::bfloat16 ? from_bfloat16(narrow[i])
                                                    : from_float16(narrow[i]));
    }
    return values;
  }

  /// @param stride between the parts of other ranks
  void check(DType dtype, DType result, int ranks, int rank, std::int64_t elements, std::int64_t stride,
             Accumulate accumulate) {
    std::vector<float> own, others, before;
    for (std::int64_t i = 0; i < elements; ++i) {
      own.push_back(part(dtype, rank, i));
      before.push_back(rounded(result, value<float>(ranks, i) * 0x1p-12F));
    }
    for (int r = 0; r < ranks; ++r) {
      if (r == rank) continue;
      for (std::int64_t i = 0; i < stride; ++i) others.push_back(i < elements ? part(dtype, r, i) : NAN);
    }
    const Row own_row(gpu, dtype, own), other_rows(gpu, dtype, others), sum(gpu, result, before);
    gpu.sum_parts({.own = own_row.tensor(elements),
                   .rank = rank,
                   .ranks = ranks,
                   .others = other_rows.tensor(0).data,
                   .stride = stride},
                  sum.tensor(elements), accumulate, device::Stream::compute);
    const auto values = download(sum.tensor(elements + 1));
    for (std::int64_t i = 0; i < elements; ++i) {
      float expected = tree_of_parts(dtype, i, 0, ranks);
      if (accumulate == Accumulate::yes) expected = before[static_cast<std::size_t>(i)] + expected;
      ASSERT_EQ(values[static_cast<std::size_t>(i)], rounded(result, expected)) << i;
    }
    EXPECT_EQ(values.back(), kBehind);
  }

  device::cuda::CudaDevice gpu{device::GpuOptions{}};
};

TEST_F(TreeSum, IsThatOfTheTreeForAnyNumberOfRanks) {
  for (int ranks = 2; ranks <= 35; ++ranks) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    const int rank = ranks * 3 / 4;
    check(DType::float32, DType::float32, ranks, rank, 37, 40, Accumulate::no);
    check(DType::bfloat16, DType::float32, ranks, rank, 37, 40, Accumulate::yes);
  }
  check(DType::bfloat16, DType::bfloat16, 300, 299, 21, 24, Accumulate::yes);
}

TEST_F(TreeSum, OfEveryDtypeAndSize) {
  for (const int ranks : {2, 3, 4, 8, 16}) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      for (const DType result : {dtype, DType::float32}) {
        for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
          for (const std::int64_t elements : {0, 1, 7, 8, 4099}) {
            for (const std::int64_t stride : {elements, (elements + 7) / 8 * 8}) {
              SCOPED_TRACE(fmt::format("{} ranks, {} {} to {}, {} apart, added: {}", ranks, elements,
                                       to_string(dtype), to_string(result), stride,
                                       accumulate == Accumulate::yes));
              check(dtype, result, ranks, elements % 2 == 0 ? 0 : ranks - 1, elements, stride, accumulate);
            }
          }
        }
      }
    }
  }
}

TEST_F(TreeSum, MayBeWhereTheOwnPartIs) {
  constexpr std::int64_t kElements = 1003;
  std::vector<float> own, other;
  for (std::int64_t i = 0; i < kElements; ++i) {
    own.push_back(part(DType::float32, 1, i));
    other.push_back(part(DType::float32, 0, i));
  }
  const Row own_row(gpu, DType::float32, own), other_row(gpu, DType::float32, other);
  gpu.sum_parts({.own = own_row.tensor(kElements),
                 .rank = 1,
                 .ranks = 2,
                 .others = other_row.tensor(kElements).data,
                 .stride = kElements},
                own_row.tensor(kElements), Accumulate::no, device::Stream::compute);
  const auto values = download(own_row.tensor(kElements));
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], other[i] + own[i]) << i;
}

// Those of one kernel, where their own parts are or in float32 elsewhere, aligned and not.
TEST_F(TreeSum, MayBeSeveral) {
  constexpr int kRanks = 3, kRank = 1, kSums = 5;
  for (const std::int64_t elements : {16, 19}) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      for (const bool in_place : {true, false}) {
        const std::int64_t own_step = elements + 8, others_step = elements + 16, stride = kSums * others_step;
        std::vector<float> own, others;
        const auto number = [&](int rank, int sum, std::int64_t i) { return part(dtype, rank + 7 * sum, i); };
        for (int s = 0; s < kSums; ++s) {
          for (std::int64_t i = 0; i < own_step; ++i)
            own.push_back(i < elements ? number(kRank, s, i) : kBehind);
        }
        for (const int rank : {0, 2}) {
          for (int s = 0; s < kSums; ++s) {
            for (std::int64_t i = 0; i < others_step; ++i)
              others.push_back(i < elements ? number(rank, s, i) : NAN);
          }
        }
        const DType result = in_place ? dtype : DType::float32;
        const Row own_row(gpu, dtype, own), other_row(gpu, dtype, others),
            elsewhere(gpu, result, std::vector<float>(own.size(), kBehind));
        const Row& sums = in_place ? own_row : elsewhere;
        gpu.sum_parts({.own = own_row.tensor(elements),
                       .rank = kRank,
                       .ranks = kRanks,
                       .others = other_row.tensor(0).data,
                       .stride = stride,
                       .sums = kSums,
                       .own_step = own_step,
                       .others_step = others_step},
                      sums.tensor(elements), Accumulate::no, device::Stream::compute);
        const auto values = download(sums.tensor(std::ssize(own) + 1));
        for (int s = 0; s < kSums; ++s) {
          for (std::int64_t i = 0; i < own_step; ++i) {
            const float expected = (number(0, s, i) + number(1, s, i)) + number(2, s, i);
            ASSERT_EQ(values[static_cast<std::size_t>(s * own_step + i)],
                      i < elements ? rounded(result, expected) : kBehind)
                << s << " " << i;
          }
        }
        EXPECT_EQ(values.back(), kBehind);
      }
    }
  }
}

TEST_F(TreeSum, RefusesOtherDtypes) {
  const Row row(gpu, DType::float32, {1, 2}), narrow(gpu, DType::float16, {1, 2});
  const device::RankParts parts{
      .own = row.tensor(2), .rank = 0, .ranks = 2, .others = row.tensor(2).data, .stride = 2};
  EXPECT_THROW(gpu.sum_parts(parts, narrow.tensor(2), Accumulate::no, device::Stream::compute), Error);
  EXPECT_THROW(gpu.sum_parts(parts, row.tensor(1), Accumulate::no, device::Stream::compute), Error);
  auto none = parts;
  none.sums = 0;
  EXPECT_THROW(gpu.sum_parts(none, row.tensor(2), Accumulate::no, device::Stream::compute), Error);
}

}  // namespace
}  // namespace llampi::test
