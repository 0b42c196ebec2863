// SPDX-License-Identifier: Apache-2.0
// Instructions of a warp for tensor cores, as PTX (sm_80 and later; see hardware.cuh): matrix products,
// fragments from shared memory, asynchronous copies.
//
// Fragments as the PTX ISA lays them out ("Matrix Fragments for mma.m16n8k16 with floating point type"). With
// lane = 4 g + t, 0 <= g < 8, 0 <= t < 4, registers hold two 16-bit elements each, the first in the lower
// half:
//   A [16, 16]   a[0] = A[g][2t, 2t+1]     a[2] = A[g][2t+8, 2t+9]
//                a[1] = A[g+8][2t, 2t+1]   a[3] = A[g+8][2t+8, 2t+9]
//   B [16, 8]    b0 = B[2t, 2t+1][g]       b1 = B[2t+8, 2t+9][g]
//   C [16, 8]    c[0], c[1] = C[g][2t, 2t+1]   c[2], c[3] = C[g+8][2t, 2t+1], float32
// All lanes of a warp take part in mma and ldmatrix.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace llampi::device::cuda {

/// Where something lies in shared memory, in bytes.
using SharedAddress = std::uint32_t;
__device__ inline SharedAddress shared_address(const void* pointer) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(pointer));
}

/// x, of which the compiler knows nothing: what is computed from it is computed where it is used, instead of
/// once before a loop, for a register that is held all along.
__device__ inline unsigned recomputed(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// C += A B with float32 accumulation; T is __nv_bfloat16 or __half.
template <class T>
__device__ inline void mma_16x8x16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                   std::uint32_t b1);
template <>
__device__ inline void mma_16x8x16<__nv_bfloat16>(float (&c)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mma_16x8x16<__half>(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                           std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8x8 matrices M of 16-bit elements from shared memory: lane 8 m + r passes where row r of matrix m is
/// (16 bytes, aligned to 16), and gets M_m[g][2t, 2t+1] in r[m].
__device__ inline void ldmatrix_x4(std::uint32_t (&r)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
/// The same, transposed: r[m] = M_m[2t, 2t+1][g].
__device__ inline void ldmatrix_x4_transposed(std::uint32_t (&r)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

/// Starts a copy of 16 (or 4) bytes to shared memory, or of zeros where not `valid`; `from` is not read then.
__device__ inline void cp_async_16(void* shared, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void cp_async_4(void* shared, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}
/// Closes this thread's group of copies.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most kGroups of this thread's groups are under way. Other threads see the data after a barrier.
template <int kGroups>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// 2^x to about two units in the last place; subnormal results are zero.
__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace llampi::device::cuda
