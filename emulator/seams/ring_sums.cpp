// SPDX-License-Identifier: Apache-2.0
#include "emulator/seams/ring_sums.hpp"

#include <algorithm>
#include <cstdint>

#include "llampi/core/error.hpp"
#include "llampi/core/half.hpp"

namespace llampi::emulator {
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
void combine(const Contributions& of, int owner, std::size_t begin, std::size_t elements, std::byte* out) {
  using Stored = typename Format::Stored;
  const auto* const rows = reinterpret_cast<const Stored*>(of.all);
  auto* const target = reinterpret_cast<Stored*>(out);
  for (std::size_t i = 0; i < elements; ++i) {
    const auto given_by = [&](int rank) {
      return rows[static_cast<std::size_t>(rank % of.ranks) * of.stride + begin + i];
    };
    Stored sum = given_by(owner + 1);
    for (int k = 2; k <= of.ranks; ++k) {
      const auto a = Format::load(sum), b = Format::load(given_by(owner + k));
      sum =
          Format::store(of.op == comm::ReduceOp::max ? std::max(a, b) : static_cast<decltype(a + b)>(a + b));
    }
    target[i] = sum;
  }
}

auto combine_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return combine<Plain<double>>;
    case DType::float32:
      return combine<Plain<float>>;
    case DType::int64:
      return combine<Plain<std::int64_t>>;
    case DType::int32:
      return combine<Plain<std::int32_t>>;
    case DType::bfloat16:
      return combine<Brain>;
    case DType::float16:
      return combine<Half>;
    default:
      break;
  }
  throw Error("no sums of this dtype between emulated GPUs");
}

}  // namespace

void combine_round_the_ring(const Contributions& of, int owner, std::size_t begin, std::size_t elements,
                            std::byte* out) {
  combine_of(of.dtype)(of, owner, begin, elements, out);
}

}  // namespace llampi::emulator
