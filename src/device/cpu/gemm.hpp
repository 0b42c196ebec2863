// SPDX-License-Identifier: Apache-2.0
// Matrix products over the threads of the device.
#pragma once

#include <atomic>
#include <string>

#include "device/cpu/library_product.hpp"
#include "llampi/device/gemm_library.hpp"

namespace llampi::device {

/// A product is cut into one tile of C per thread, the same for equal shapes and threads, and so are the
/// bits.
class Gemm {
 public:
  /// @throws UserError if the library would use a generic kernel on a processor with AVX2 or AVX-512
  explicit Gemm(int threads);

  /// @throws CallError
  void operator()(const Product& product);
  /// In the calling thread alone, inside a parallel region; a failure is reported by check().
  void serial(const Product& product) noexcept;
  /// After a region that called serial(). @throws CallError
  void check();

  /// "oneDNN 2.6.3 (AVX-512)"
  std::string describe() const;

 private:
  void tile(const Product& product, std::int64_t row_part, std::int64_t row_parts, std::int64_t col_part,
            std::int64_t col_parts) noexcept;

  int threads_;
  std::atomic<int> status_{0};  // of serial(): the last failure
};

/// y = x w^T with x [m, k], w [n, k]; y = x w with w [k, n]; w = y^T x with y [k, m], x [k, n]; all
/// contiguous.
Product product_nt(const float* x, const float* w, float* y, std::int64_t m, std::int64_t n, std::int64_t k);
Product product_nn(const float* x, const float* w, float* y, std::int64_t m, std::int64_t n, std::int64_t k);
Product product_tn(const float* y, const float* x, float* w, std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace llampi::device
