// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/gemm.hpp"

#include <string>
#include <vector>

namespace llampi::device::cuda {
namespace {

/// "the product bfloat16 [8192, 4096] = [8192, 14336] [4096, 14336]^T of bfloat16"
std::string describe(const GemmShape& s) {
  const auto operand = [](std::int64_t rows, std::int64_t cols, Transpose transpose) {
    return transpose == Transpose::yes ? fmt::format("[{}, {}]^T", cols, rows)
                                       : fmt::format("[{}, {}]", rows, cols);
  };
  return fmt::format("the product {} [{}, {}] {} {} {} of {}", to_string(s.out), s.m, s.n,
                     s.accumulate == Accumulate::yes ? "+=" : "=", operand(s.m, s.k, s.a),
                     operand(s.k, s.n, s.b), to_string(s.in));
}

/// The largest power of two that divides both addresses, 256 at most: no algorithm asks for more.
std::uint32_t alignment_of(const void* p, const void* q) {
  const auto bits = reinterpret_cast<std::uintptr_t>(p) | reinterpret_cast<std::uintptr_t>(q) | 256U;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// A matrix with rows one after another is, by columns, its transpose.
ColumnMatrix transposed(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  const std::int64_t used = stride == 0 ? cols : stride;
  require(used >= cols, "the rows of a matrix overlap");
  return {dtype, cols, rows, used};
}

/// The library stores matrices by columns: what it sees of a row-major matrix is its transpose. So it is
/// asked for C^T = op(B)^T op(A)^T, with B as its first operand, and no matrix has to be moved.
ColumnProduct by_columns(const GemmShape& s) {
  const bool a_turned = s.a == Transpose::yes, b_turned = s.b == Transpose::yes;
  ColumnProduct product;
  product.first = transposed(s.in, b_turned ? s.n : s.k, b_turned ? s.k : s.n, 0);
  product.second = transposed(s.in, a_turned ? s.k : s.m, a_turned ? s.m : s.k, s.a_stride);
  product.result = transposed(s.out, s.m, s.n, s.c_stride);
  product.transpose_first = s.b;
  product.transpose_second = s.a;
  return product;
}

/// Where the same bits are asked for, nothing is added as it comes; nor where the result is narrow, because
/// it would be rounded between the parts.
PartialSums partial_sums(DType out, bool deterministic) {
  return out == DType::float32 && !deterministic ? PartialSums::any : PartialSums::in_order;
}

}  // namespace

/// A product that was asked for, and the algorithm that was chosen for it.
struct Gemm::Plan {
  /// @throws Error if there is no algorithm
  Plan(ProductLibrary& library, const ColumnProduct& product) : in_library(library.product(product)) {
    const std::vector<LibraryProduct::Algorithm> algorithms = in_library->algorithms();
    for (; algorithm < algorithms.size(); ++algorithm) {
      if (algorithms[algorithm].runs && (product.in_place || in_library->adds_out_of_place(algorithm)))
        return;
    }
    throw Error("no algorithm can be used");
  }

  std::unique_ptr<LibraryProduct> in_library;
  std::size_t algorithm = 0;
};

Gemm::Gemm(bool deterministic, bool tf32)
    : library_(make_product_library()), deterministic_(deterministic), tf32_(tf32) {}

Gemm::~Gemm() = default;

Gemm::Plan& Gemm::plan_of(const ColumnProduct& product) {
  std::unique_ptr<Plan>& plan = plans_[product];
  if (!plan) plan = std::make_unique<Plan>(*library_, product);
  return *plan;
}

void Gemm::run(const GemmShape& shape, const GemmOperands& operands, const Tensor& workspace,
               cudaStream_t stream) {
  const auto [a, b, c, residual] = operands;
  require(shape.m > 0 && shape.n > 0 && shape.k > 0, "a matrix product of nothing");
  require(residual == nullptr || shape.accumulate == Accumulate::no, "a product adds to one matrix only");
  require(workspace.bytes() == 0 || reinterpret_cast<std::uintptr_t>(workspace.data) % 256 == 0,
          "the workspace of matrix products is not aligned to 256 bytes");
  const void* const added = residual == nullptr ? c : residual;
  ColumnProduct product = by_columns(shape);
  product.adds = residual != nullptr || shape.accumulate == Accumulate::yes;
  product.in_place = added == c;
  product.tf32 = tf32_ && shape.in == DType::float32;
  product.partial_sums = partial_sums(shape.out, deterministic_);
  product.alignment = {alignment_of(b, b), alignment_of(a, a), alignment_of(c, added)};
  product.workspace_bytes = workspace.bytes();
  try {
    Plan& plan = plan_of(product);
    plan.in_library->run(plan.algorithm, {b, a, added, c}, workspace.data, stream);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", describe(shape), error.what()));
  }
}

}  // namespace llampi::device::cuda
