// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters: thin products beside the large one, which read its input where it is.
#include <algorithm>
#include <array>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/core/philox.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kElementsOfBlock = 8;  // 16 bits each

/// -1: nothing is dropped.
std::int64_t first_sample_of(const Dropout& dropout) {
  const std::int32_t* words = integers(dropout.first_sample, 2, "first_sample");
  return static_cast<std::int64_t>(std::uint64_t{static_cast<std::uint32_t>(words[1])} << 32 |
                                   static_cast<std::uint32_t>(words[0]));
}

std::array<std::uint32_t, 4> bits_of_block(const Dropout& dropout, std::uint64_t index) {
  return philox(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
       static_cast<std::uint32_t>(dropout.purpose), static_cast<std::uint32_t>(dropout.purpose >> 32)},
      {static_cast<std::uint32_t>(dropout.key), static_cast<std::uint32_t>(dropout.key >> 32)});
}

bool drops(const Dropout& dropout) { return dropout.probability > 0 && first_sample_of(dropout) >= 0; }

}  // namespace

void CpuDevice::drop(const Dropout& dropout, const Tensor& source, const Tensor& destination,
                     Dropped how) const {
  const std::int64_t rows = source.rows, cols = source.cols, blocks = ceil_div(cols, kElementsOfBlock);
  const float* from = floats(source, rows, cols, "x");
  float* to = floats(destination, rows, cols, "dropped");
  const std::uint32_t threshold = dropout_threshold(dropout.probability);
  const auto factor = static_cast<float>(dropout_factor(dropout.probability));
  const std::int64_t first_token = first_sample_of(dropout) * dropout.seq_len;
  parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t block = begin * blocks; block < end * blocks; ++block) {
      const auto bits = bits_of_block(dropout, static_cast<std::uint64_t>(first_token * blocks + block));
      const std::int64_t row = block / blocks, first = block % blocks * kElementsOfBlock;
      for (std::int64_t i = 0; i < std::min(kElementsOfBlock, cols - first); ++i) {
        const std::uint32_t drawn = bits[static_cast<std::size_t>(i / 2)] >> (16 * (i % 2)) & 0xFFFF;
        const std::int64_t at = row * cols + first + i;
        const float value = drawn < threshold ? 0.0F : from[at] * factor;
        to[at] = how == Dropped::added ? to[at] + value : value;
      }
    }
  });
}

void CpuDevice::execute(const op::LowRankDown& o) {
  const std::int64_t rows = o.x.rows, in = o.x.cols;
  for (const LowRank& l : o.adapters) {
    const std::int64_t rank = l.a.rows;
    const float* input = floats(o.x, rows, in, "x");
    if (drops(l.dropout)) {
      drop(l.dropout, o.x, l.dropout.dropped, Dropped::written);
      input = floats(l.dropout.dropped, rows, in, "dropped");
    }
    Product down =
        product_nt(input, floats(l.a, rank, in, "a"), floats(l.u, rows, rank, "u"), rows, rank, in);
    down.alpha = static_cast<float>(l.scale);
    gemm_(down);
  }
}

void CpuDevice::add_adapters(std::span<const LowRank> adapters, const Tensor& x, const Tensor& y) {
  execute(op::LowRankDown{.x = x, .adapters = adapters});
  for (const LowRank& l : adapters) {
    const std::int64_t rows = x.rows, rank = l.a.rows, out = l.b.rows;
    require(l.first >= 0 && l.first + out <= y.cols, "an adapter beyond its product");
    Product up = product_nt(floats(l.u, rows, rank, "u"), floats(l.b, out, rank, "b"),
                            floats(y, rows, y.cols, "y") + l.first, rows, out, rank);
    up.stride_c = y.cols;
    up.beta = 1;
    gemm_(up);
  }
}

void CpuDevice::adapter_input_gradients(const op::InputGradient& o) {
  for (const LowRank& l : o.adapters) {
    const std::int64_t rows = o.dx.rows, in = o.dx.cols, rank = l.a.rows, out = l.b.rows;
    require(l.first >= 0 && l.first + out <= o.dy.cols, "an adapter beyond its product");
    const float* dy = floats(o.dy, rows, o.dy.cols, "dy") + l.first;
    float* du = floats(l.du, rows, rank, "du");
    if (float* db = gradient_floats(l.db, out, rank, "db"); db != nullptr) {
      Product gradient = product_tn(dy, floats(l.u, rows, rank, "u"), db, out, rank, rows);
      gradient.stride_a = o.dy.cols;
      gradient.beta = beta(l.accumulate_db);
      gemm_(gradient);
    }
    Product back = product_nn(dy, floats(l.b, out, rank, "b"), du, rows, rank, out);
    back.stride_a = o.dy.cols;
    back.alpha = static_cast<float>(l.scale);
    gemm_(back);
    const bool drops_some = drops(l.dropout);
    Product into_input =
        product_nn(du, floats(l.a, rank, in, "a"),
                   drops_some ? floats(l.dropout.dropped, rows, in, "dropped") : floats(o.dx, rows, in, "dx"),
                   rows, in, rank);
    into_input.beta = drops_some ? 0.0F : 1.0F;
    gemm_(into_input);
    if (drops_some) drop(l.dropout, l.dropout.dropped, o.dx, Dropped::added);
  }
}

void CpuDevice::adapter_weight_gradients(const op::WeightGradient& o) {
  for (const LowRank& l : o.adapters) {
    const std::int64_t rows = o.x.rows, in = o.x.cols, rank = l.a.rows;
    float* da = gradient_floats(l.da, rank, in, "da");
    if (da == nullptr) continue;
    const float* input = floats(o.x, rows, in, "x");
    if (drops(l.dropout)) {
      drop(l.dropout, o.x, l.dropout.dropped, Dropped::written);
      input = floats(l.dropout.dropped, rows, in, "dropped");
    }
    Product gradient = product_tn(floats(l.du, rows, rank, "du"), input, da, rank, in, rows);
    gradient.beta = beta(l.accumulate_da);
    gemm_(gradient);
  }
}

}  // namespace llampi::device
