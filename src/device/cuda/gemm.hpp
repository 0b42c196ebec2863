// SPDX-License-Identifier: Apache-2.0
// Matrix products: float32 accumulation, one choice of algorithm per shape, kept.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/common.hpp"
#include "device/cuda/product_library.hpp"
#include "llampi/core/tensor.hpp"
#include "llampi/device/tuning.hpp"

namespace llampi::device::cuda {

/// Row-major C [m, n] (+)= op(A) op(B), op(A) [m, k], op(B) [k, n]; A and B in one dtype (float32, bfloat16,
/// float16), C in that one or in float32. All sizes are at least 1; none has to be a multiple of anything,
/// but rows that do not start at multiples of 16 bytes cost speed.
/// Or A and B in 8 bits, at most one of them in float8_e5m2, and C in bfloat16 or float32: then A is as it is, B
/// transposed, and sizes and addresses are multiples of 16.
struct GemmShape {
  std::int64_t m = 0, n = 0, k = 0;
  Transpose a = Transpose::no, b = Transpose::no;
  DType in = DType::bfloat16, out = DType::bfloat16;
  std::optional<DType> in_b = {};  ///< of B, where it is not that of A
  /// In 8 bits: what the factors of A and of B^T are.
  Fp8Scaling a_scaling = Fp8Scaling::tensor, b_scaling = Fp8Scaling::tensor;
  bool fast_accumulation = false;  ///< in 8 bits, on Hopper: sums keep 14 bits of the fraction
  Accumulate accumulate = Accumulate::no;
  /// Elements from the start of one stored row of A, or of C, to the next; 0: the rows have no gaps.
  std::int64_t a_stride = 0, c_stride = 0;

  auto operator<=>(const GemmShape&) const = default;
};

/// The matrices of a product. With Accumulate::no and no residual C is not read.
struct GemmOperands {
  const void* a;
  const void* b;
  void* c;
  /// In C's dtype, shape and stride; may be c itself; with Accumulate::no only: added in float32 before C is
  /// rounded. Null: none.
  const void* residual = nullptr;
  /// In 8 bits: what A and B are multiplied by, in device memory, as GemmShape says.
  const float* a_factor = nullptr;
  const float* b_factor = nullptr;
  float scale = 1;  ///< what op(A) op(B) is multiplied by in float32, before anything is added
};

class Gemm final : public Autotuner {
 public:
  /// @param gpu of whose products the choices are: its name and driver
  /// @param deterministic no algorithm whose partial sums are added in the order in which blocks finish
  /// @param tf32 float32 products in TF32
  /// @param multiprocessors see ColumnProduct
  /// @throws Error if the library of products cannot be used on this machine
  Gemm(bool deterministic, bool tf32, std::string gpu = "", int multiprocessors = 0);
  ~Gemm() override;
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// C (+)= op(A) op(B) + residual. `workspace` is aligned to 256 bytes and belongs to `stream` while the
  /// product runs; an empty one will do. The first call of a shape asks the library for an algorithm, for the
  /// current GPU: that takes some 100 microseconds and may load kernels (device memory), so it is to be done
  /// before a graph is captured.
  /// @throws Error naming the shape
  void run(const GemmShape& shape, const GemmOperands& operands, const Tensor& workspace,
           cudaStream_t stream);

  // Autotuner: which algorithm has which product
  std::string key() const override;
  void adopt(const AlgorithmChoices& choices) override;
  void measure(bool on) override { measures_ = on; }
  AlgorithmChoices choices() const override;
  std::vector<std::string> warnings() const override { return warnings_; }

 private:
  struct Plan;
  Plan& plan_of(const ColumnProduct& product, const ColumnOperands& operands, const Tensor& workspace,
                cudaStream_t stream);
  void choose(Plan& plan, const ColumnProduct& product, const ColumnOperands& operands,
              const Tensor& workspace, cudaStream_t stream);

  std::unique_ptr<ProductLibrary> library_;
  bool deterministic_, tf32_;
  bool measures_ = false;
  std::string gpu_;
  int multiprocessors_;
  AlgorithmChoices adopted_;
  std::vector<std::string> warnings_;
  std::map<ColumnProduct, std::unique_ptr<Plan>> plans_;
};

}  // namespace llampi::device::cuda
