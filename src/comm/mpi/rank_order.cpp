#include "comm/mpi/rank_order.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace llampi {
namespace {

// Elements that are combined at a time: partial results stay in the first-level cache whatever the number of
// ranks.
constexpr std::int64_t kBlock = 2048;

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

template <class T, class Op>
void fold(const T* __restrict source, std::int64_t elements, Op op, T* __restrict target) {
  for (std::int64_t i = 0; i < elements; ++i) target[i] = op(target[i], source[i]);
}

/// target = the contributions of two or more ranks combined.
template <class T, class Op>
void combine_block(const T* __restrict first, std::int64_t stride, int ranks, std::int64_t elements, Op op,
                   T* __restrict target) {
  const T* __restrict second = first + stride;
  for (std::int64_t i = 0; i < elements; ++i) target[i] = op(first[i], second[i]);
  for (int rank = 2; rank < ranks; ++rank) fold(first + rank * stride, elements, op, target);
}

template <class T, class Op>
void combine(const void* contributions, std::int64_t stride, int ranks, std::int64_t elements, Op op,
             Accumulate accumulate, void* out_bytes) {
  const T* first = static_cast<const T*>(contributions);
  T* out = static_cast<T*>(out_bytes);
  if (ranks == 1) {
    if (accumulate == Accumulate::yes) {
      fold(first, elements, Sum(), out);
    } else if (out != first && elements > 0) {
      std::memcpy(out, first, static_cast<std::size_t>(elements) * sizeof(T));
    }
    return;
  }
  std::array<T, kBlock> partial;
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, elements - begin);
    if (accumulate == Accumulate::yes) {
      combine_block(first + begin, stride, ranks, count, op, partial.data());
      fold(partial.data(), count, Sum(), out + begin);
    } else {
      combine_block(first + begin, stride, ranks, count, op, out + begin);
    }
  }
}

template <class T>
void combine(const void* contributions, std::int64_t stride, int ranks, std::int64_t elements, ReduceOp op,
             Accumulate accumulate, void* out) {
  if (op == ReduceOp::sum) {
    combine<T>(contributions, stride, ranks, elements, Sum(), accumulate, out);
  } else {
    combine<T>(contributions, stride, ranks, elements, Max(), accumulate, out);
  }
}

}  // namespace

void combine_in_rank_order(const void* contributions, std::int64_t stride, int ranks, std::int64_t elements,
                           DType dtype, ReduceOp op, Accumulate accumulate, void* out) {
  switch (dtype) {
    case DType::float32:
      return combine<float>(contributions, stride, ranks, elements, op, accumulate, out);
    case DType::float64:
      return combine<double>(contributions, stride, ranks, elements, op, accumulate, out);
    case DType::int64:
      return combine<std::int64_t>(contributions, stride, ranks, elements, op, accumulate, out);
    case DType::int32:
      return combine<std::int32_t>(contributions, stride, ranks, elements, op, accumulate, out);
    case DType::bfloat16:
    case DType::float16:
      break;
  }
  require_reducible(dtype);
}

void require_reducible(DType dtype) {
  if (dtype == DType::bfloat16 || dtype == DType::float16) {
    throw Error(fmt::format("reductions in {} are not built yet", to_string(dtype)));
  }
}

}  // namespace llampi
