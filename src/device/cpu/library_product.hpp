// SPDX-License-Identifier: Apache-2.0
// Products by the library of llampi/device/gemm_library.hpp. It is called from one thread at a time per product; the threads are
// ours (gemm.hpp).
#pragma once

#include <cstdint>

namespace llampi::device {

/// op(A) [m, k] times op(B) [k, n] into C [m, n], all row-major: C = alpha op(A) op(B) + beta C. With beta 0,
/// C is overwritten whatever it holds. Strides are elements from one row to the next, as stored.
struct Product {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  float alpha = 1;
  const float* a = nullptr;
  std::int64_t stride_a = 0;
  const float* b = nullptr;
  std::int64_t stride_b = 0;
  float beta = 0;
  float* c = nullptr;
  std::int64_t stride_c = 0;
};

/// In the calling thread alone, which must be inside one of parallel.hpp's regions. 0, or the library's
/// status.
int library_sgemm(const Product& product) noexcept;

/// Tells the library not to start threads of its own.
/// @throws UserError if it cannot do without
void make_gemm_library_serial();

}  // namespace llampi::device
