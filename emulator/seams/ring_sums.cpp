// SPDX-License-Identifier: Apache-2.0
#include "emulator/seams/ring_sums.hpp"

#include <algorithm>
#include <cstdint>

#include "llampi/core/error.hpp"
#include "llampi/core/half.hpp"

namespace llampi::emulated_nccl {
namespace {

template <class T>
struct Plain {
  using Stored = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
struct Brain {
  using Stored = std::uint16_t;
  static float load(std::uint16_t x) { return from_bfloat16(x); }
  static std::uint16_t store(float x) { return to_bfloat16(x); }
};
struct Half {
  using Stored = std::uint16_t;
  static float load(std::uint16_t x) { return from_float16(x); }
  static std::uint16_t store(float x) { return to_float16(x); }
};

template <class Format>
void combine(ncclRedOp_t op, const std::byte* all, std::size_t stride, int ranks, int owner,
             std::size_t begin, std::size_t elements, std::byte* out) {
  using Stored = typename Format::Stored;
  const auto* const rows = reinterpret_cast<const Stored*>(all);
  auto* const target = reinterpret_cast<Stored*>(out);
  for (std::size_t i = 0; i < elements; ++i) {
    Stored sum = rows[static_cast<std::size_t>((owner + 1) % ranks) * stride + begin + i];
    for (int k = 2; k <= ranks; ++k) {
      const Stored next = rows[static_cast<std::size_t>((owner + k) % ranks) * stride + begin + i];
      const auto a = Format::load(sum), b = Format::load(next);
      sum = Format::store(op == ncclMax ? std::max(a, b) : static_cast<decltype(a + b)>(a + b));
    }
    target[i] = sum;
  }
}

auto combine_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return combine<Plain<double>>;
    case ncclFloat32:
      return combine<Plain<float>>;
    case ncclInt64:
      return combine<Plain<std::int64_t>>;
    case ncclInt32:
      return combine<Plain<std::int32_t>>;
    case ncclBfloat16:
      return combine<Brain>;
    case ncclFloat16:
      return combine<Half>;
    default:
      throw Error("the emulated NCCL has no such type");
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
    case ncclInt64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      throw Error("the emulated NCCL has no such type");
  }
}

void combine_round_the_ring(ncclDataType_t type, ncclRedOp_t op, const std::byte* all, std::size_t stride,
                            int ranks, int owner, std::size_t begin, std::size_t elements, std::byte* out) {
  combine_of(type)(op, all, stride, ranks, owner, begin, elements, out);
}

}  // namespace llampi::emulated_nccl
