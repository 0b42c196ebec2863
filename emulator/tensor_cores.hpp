// SPDX-License-Identifier: Apache-2.0
// Instructions of a warp for tensor cores step by step, one lane at a time, with the fragments that the PTX
// ISA lays out (src/device/cuda/mma.cuh draws them).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "emulator/block.hpp"
#include "llampi/core/error.hpp"

namespace llampi::emulator {
namespace mma_detail {

template <class T>
float element(std::uint32_t pair, int index) {
  const auto bits = static_cast<std::uint16_t>(pair >> (16 * index));
  T value;
  std::memcpy(&value, &bits, sizeof(value));
  return static_cast<float>(value);
}

using Row = const std::uint16_t*;
/// The addresses that the lanes pass to ldmatrix.
inline Lanes<Row> show_rows(std::uintptr_t row) {
  require(row % 16 == 0, "ldmatrix reads rows that are aligned to 16 bytes");
  return show_lanes(reinterpret_cast<Row>(row));
}

struct AsyncCopy {
  void* to;
  const void* from;
  std::size_t bytes;
  bool valid;
};
/// Copies that a thread has started. They arrive as late as they may: when the thread waits for them.
struct AsyncCopies {
  std::vector<AsyncCopy> open;
  std::vector<std::vector<AsyncCopy>> groups;
};
inline AsyncCopies& async_copies() {
  static std::vector<AsyncCopies> copies(1024);
  return copies[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
}
/// Until the copy has arrived its destination is not a number: it may be overwritten from now on.
inline void start_copy(void* to, const void* from, std::size_t bytes, bool valid) {
  require(reinterpret_cast<std::uintptr_t>(to) % bytes == 0 &&
              reinterpret_cast<std::uintptr_t>(from) % bytes == 0,
          "cp.async copies between aligned addresses");
  std::memset(to, 0xFF, bytes);
  async_copies().open.push_back({to, from, bytes, valid});
}

}  // namespace mma_detail

/// x, of which a compiler for GPUs is to know nothing.
inline unsigned recomputed(unsigned x) { return x; }

using SharedAddress = std::uintptr_t;
inline SharedAddress shared_address(const void* pointer) { return reinterpret_cast<SharedAddress>(pointer); }

template <class T>
void mma_16x8x16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  struct Operands {
    float a[4][2], b[2][2];  // by register and half of it
  };
  Operands own;
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i) own.a[i][half] = mma_detail::element<T>(a[i], half);
    own.b[0][half] = mma_detail::element<T>(b0, half);
    own.b[1][half] = mma_detail::element<T>(b1, half);
  }
  const Lanes<Operands> lanes = show_lanes(own);
  const int g = lane() / 4, t = lane() % 4;
  float sums[4] = {};                // the products meet each other before they meet c, as on a GPU
  for (int k = 0; k < 16; k += 2) {  // two elements in a register
    const int owner = k % 8 / 2, upper = k / 8;  // t of the lanes that hold A[.][k] and B[k][.]
    const Operands left = lanes[4 * g + owner];
    for (int column = 0; column < 2; ++column) {
      const Operands right = lanes[4 * (2 * t + column) + owner];
      for (int row = 0; row < 2; ++row) {
        for (int half = 0; half < 2; ++half)
          sums[2 * row + column] += left.a[2 * upper + row][half] * right.b[upper][half];
      }
    }
  }
  for (int i = 0; i < 4; ++i) c[i] += sums[i];
}

inline void ldmatrix_x4(std::uint32_t (&r)[4], SharedAddress row) {
  const Lanes<mma_detail::Row> rows = mma_detail::show_rows(row);
  const int g = lane() / 4, t = lane() % 4;
  for (int m = 0; m < 4; ++m) std::memcpy(&r[m], rows[8 * m + g] + 2 * t, sizeof(r[m]));
}

inline void ldmatrix_x4_transposed(std::uint32_t (&r)[4], SharedAddress row) {
  const Lanes<mma_detail::Row> rows = mma_detail::show_rows(row);
  const int g = lane() / 4, t = lane() % 4;
  for (int m = 0; m < 4; ++m) {
    r[m] = rows[8 * m + 2 * t][g] | (static_cast<std::uint32_t>(rows[8 * m + 2 * t + 1][g]) << 16);
  }
}

inline void cp_async_16(void* shared, const void* from, bool valid) {
  mma_detail::start_copy(shared, from, 16, valid);
}
inline void cp_async_4(void* shared, const void* from, bool valid) {
  mma_detail::start_copy(shared, from, 4, valid);
}
inline void cp_async_commit() {
  mma_detail::AsyncCopies& copies = mma_detail::async_copies();
  copies.groups.push_back(std::exchange(copies.open, {}));
}
template <int kGroups>
void cp_async_wait() {
  auto& groups = mma_detail::async_copies().groups;
  while (groups.size() > kGroups) {
    for (const mma_detail::AsyncCopy& copy : groups.front()) {
      if (copy.valid) {
        std::memcpy(copy.to, copy.from, copy.bytes);
      } else {
        std::memset(copy.to, 0, copy.bytes);
      }
    }
    groups.erase(groups.begin());
  }
}

inline float exp2_approximate(float x) { return std::exp2(x); }

}  // namespace llampi::emulator
