// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/tree_order.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "llampi/comm/sum_tree.hpp"
#include "llampi/core/half.hpp"

namespace llampi::comm {
namespace {

// Elements that are combined at a time: the partial results of few ranks stay in the first-level cache.
constexpr std::int64_t kBlock = 2048;

// How elements are kept in memory (Stored) and what is computed with (Value).

template <class T>
struct Wide {
  using Stored = T;
  using Value = T;
  static T load(T stored) { return stored; }
  static T store(T value) { return value; }
};

struct Bfloat16 {
  using Stored = std::uint16_t;
  using Value = float;
  static float load(std::uint16_t stored) { return from_bfloat16(stored); }
  static std::uint16_t store(float value) { return to_bfloat16(value); }
};

struct Float16 {
  using Stored = std::uint16_t;
  using Value = float;
  static float load(std::uint16_t stored) { return from_float16(stored); }
  static std::uint16_t store(float value) { return to_float16(value); }
};

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a < b || b != b ? b : a;  // NaN stays NaN
  }
};

/// Contributions to some elements: of rank r from r * stride on.
template <class In>
struct Contributions {
  const typename In::Stored* first;
  std::int64_t stride, ranks;

  Contributions part(std::int64_t rank, std::int64_t count) const {
    return {first + rank * stride, stride, count};
  }
};

template <class In, class Op>
void combine_right(const Contributions<In>& all, std::int64_t elements, Op op,
                   typename In::Value* __restrict target);

/// target = the contributions of all ranks combined, at most kBlock elements.
template <class In, class Op>
void combine_block(const Contributions<In>& all, std::int64_t elements, Op op,
                   typename In::Value* __restrict target) {
  const typename In::Stored* __restrict first = all.first;
  if (all.ranks == 1) {
    for (std::int64_t i = 0; i < elements; ++i) target[i] = In::load(first[i]);
    return;
  }
  const std::int64_t left = tree_left(all.ranks);
  const typename In::Stored* __restrict last = first + left * all.stride;
  if (all.ranks == 2) {
    for (std::int64_t i = 0; i < elements; ++i) target[i] = op(In::load(first[i]), In::load(last[i]));
    return;
  }
  combine_block(all.part(0, left), elements, op, target);
  if (all.ranks - left == 1) {
    for (std::int64_t i = 0; i < elements; ++i) target[i] = op(target[i], In::load(last[i]));
    return;
  }
  combine_right(all.part(left, all.ranks - left), elements, op, target);
}

/// target = target op the contributions combined. A function of its own: each level has its array on the stack.
template <class In, class Op>
void combine_right(const Contributions<In>& all, std::int64_t elements, Op op,
                   typename In::Value* __restrict target) {
  std::array<typename In::Value, kBlock> right;
  combine_block(all, elements, op, right.data());
  for (std::int64_t i = 0; i < elements; ++i) target[i] = op(target[i], right[static_cast<std::size_t>(i)]);
}

/// Hands the combined contributions to `sink(begin, count, partial)`, block by block.
template <class In, class Op, class Sink>
void for_each_block(const RankRows& contributions, Op op, Sink sink) {
  const auto* first = static_cast<const typename In::Stored*>(contributions.first);
  const std::int64_t elements = contributions.elements;
  std::array<typename In::Value, kBlock> partial;
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, elements - begin);
    combine_block<In>({first + begin, contributions.stride, contributions.ranks}, count, op, partial.data());
    sink(begin, count, partial.data());
  }
}

template <class Out, class Value>
void store_block(const Value* __restrict source, std::int64_t elements, Accumulate accumulate,
                 typename Out::Stored* __restrict target) {
  if (accumulate == Accumulate::yes) {
    for (std::int64_t i = 0; i < elements; ++i) target[i] = Out::store(Out::load(target[i]) + source[i]);
  } else {
    for (std::int64_t i = 0; i < elements; ++i) target[i] = Out::store(source[i]);
  }
}

template <class In, class Out, class Op>
void combine(const RankRows& contributions, Op op, Accumulate accumulate, Tensor out_row) {
  auto* out = static_cast<typename Out::Stored*>(out_row.data);
  const auto* first = static_cast<const typename In::Stored*>(contributions.first);
  const std::int64_t ranks = contributions.ranks, elements = contributions.elements;
  if constexpr (std::is_same_v<In, Out>) {
    if (ranks == 1 && accumulate == Accumulate::no) {
      if (out != first && elements > 0) std::memcpy(out, first, static_cast<std::size_t>(out_row.bytes()));
      return;
    }
  }
  if constexpr (std::is_same_v<typename In::Value, typename Out::Stored>) {
    if (accumulate == Accumulate::no) {
      for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
        combine_block<In>({first + begin, contributions.stride, ranks}, std::min(kBlock, elements - begin),
                          op, out + begin);
      }
      return;
    }
  }
  for_each_block<In>(contributions, op, [&](std::int64_t begin, std::int64_t count, const auto* partial) {
    store_block<Out>(partial, count, accumulate, out + begin);
  });
}

template <class In, class Out>
void combine(const RankRows& contributions, ReduceOp op, Accumulate accumulate, Tensor out) {
  if (op == ReduceOp::sum) {
    combine<In, Out>(contributions, Sum(), accumulate, out);
  } else {
    combine<In, Out>(contributions, Max(), accumulate, out);
  }
}

template <class In>
void combine_narrow(const RankRows& contributions, ReduceOp op, Accumulate accumulate, Tensor out) {
  if (out.dtype == DType::float32) {
    combine<In, Wide<float>>(contributions, op, accumulate, out);
  } else {
    combine<In, In>(contributions, op, accumulate, out);
  }
}

template <class Out>
void add_halves_to(const std::uint16_t* upper, const std::uint16_t* lower, Tensor out) {
  auto* target = static_cast<typename Out::Stored*>(out.data);
  for (std::int64_t i = 0; i < out.elements(); ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(upper[i]) << 16 | lower[i];
    target[i] = Out::store(Out::load(target[i]) + std::bit_cast<float>(bits));
  }
}

}  // namespace

void combine_in_tree_order(const RankRows& contributions, ReduceOp op, Accumulate accumulate, Tensor out) {
  require_reducible(contributions.dtype, out.dtype);
  require(out.elements() == contributions.elements, "combine: out is not as long as the contributions");
  switch (contributions.dtype) {
    case DType::float32:
      return combine<Wide<float>, Wide<float>>(contributions, op, accumulate, out);
    case DType::float64:
      return combine<Wide<double>, Wide<double>>(contributions, op, accumulate, out);
    case DType::int64:
      return combine<Wide<std::int64_t>, Wide<std::int64_t>>(contributions, op, accumulate, out);
    case DType::int32:
      return combine<Wide<std::int32_t>, Wide<std::int32_t>>(contributions, op, accumulate, out);
    case DType::bfloat16:
      return combine_narrow<Bfloat16>(contributions, op, accumulate, out);
    case DType::float16:
      return combine_narrow<Float16>(contributions, op, accumulate, out);
    case DType::float8_e4m3fn:
    case DType::float8_e5m2:
    case DType::int8_blocks:
      break;  // not reducible
  }
}

void sum_to_halves(const RankRows& contributions, std::uint16_t* upper, std::uint16_t* lower) {
  const auto split = [=](std::int64_t begin, std::int64_t count, const float* partial) {
    for (std::int64_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(partial[i]);
      upper[begin + i] = static_cast<std::uint16_t>(bits >> 16);
      lower[begin + i] = static_cast<std::uint16_t>(bits);
    }
  };
  require(is_half(contributions.dtype), "halves of sums that are not of 16 bits");
  if (contributions.dtype == DType::bfloat16) {
    for_each_block<Bfloat16>(contributions, Sum(), split);
  } else {
    for_each_block<Float16>(contributions, Sum(), split);
  }
}

void add_halves(const std::uint16_t* upper, const std::uint16_t* lower, Tensor out) {
  if (out.dtype == DType::float32) return add_halves_to<Wide<float>>(upper, lower, out);
  if (out.dtype == DType::bfloat16) return add_halves_to<Bfloat16>(upper, lower, out);
  require(out.dtype == DType::float16, "halves of float32 numbers added to another type");
  add_halves_to<Float16>(upper, lower, out);
}

}  // namespace llampi::comm
