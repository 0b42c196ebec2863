// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/gemm.hpp"

#include <algorithm>
#include <string>

namespace llampi::device::cuda {
namespace {

constexpr int kCandidates = 16;

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return CUDA_R_32F;
    case DType::bfloat16:
      return CUDA_R_16BF;
    case DType::float16:
      return CUDA_R_16F;
    default:
      throw Error(fmt::format("the GPU has no matrix products in {}", to_string(dtype)));
  }
}

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

/// @throws Error naming cuBLASLt's call, its reason and the shape
void check_product(cublasStatus_t status, const char* call, const GemmShape& shape) {
  if (status != CUBLAS_STATUS_SUCCESS) check(status, fmt::format("{} for {}", call, describe(shape)).c_str());
}

/// The largest power of two that divides both addresses, 256 at most: no algorithm asks for more.
std::uint32_t alignment_of(const void* p, const void* q) {
  const auto bits = reinterpret_cast<std::uintptr_t>(p) | reinterpret_cast<std::uintptr_t>(q) | 256U;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

cublasComputeType_t compute_type(DType in, bool tf32) {
  return in == DType::float32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// How the parts of a sum over k that blocks computed side by side ("split-K") may be put together. Kept in
/// float32 in the workspace and added by a second kernel, the order is fixed.
/// CUBLASLT_REDUCTION_SCHEME_INPLACE adds each to the output as it comes; it and ..._OUTPUT_TYPE also round
/// between the parts if C is narrow. Not to split at all is always allowed. Apart from that, cuBLAS gives the
/// same bits in every run on the same kind of GPU where the caller provides the workspace (cuBLAS
/// documentation, "Results Reproducibility").
std::uint32_t reduction_schemes(DType out, bool deterministic) {
  const bool any = out == DType::float32 && !deterministic;
  return any ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

bool adds_out_of_place(const cublasLtMatmulAlgo_t& algorithm) {
  std::int32_t supported = 0;
  std::size_t written = 0;
  check(cublasLtMatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT,
                                          &supported, sizeof supported, &written),
        "cublasLtMatmulAlgoCapGetAttribute");
  return supported != 0;
}

}  // namespace

/// cuBLASLt stores matrices by columns: what it sees of a row-major matrix is its transpose. So it is asked
/// for C^T = op(B)^T op(A)^T, with B as its first operand, and no matrix has to be moved.
struct Gemm::Plan {
  Plan(cublasLtHandle_t handle, const Problem& problem, bool deterministic, bool tf32);

  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t first{}, second{}, result{};
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
  float beta = 0;

 private:
  void describe_operands(const GemmShape& shape, bool tf32);
  void choose_algorithm(cublasLtHandle_t handle, const Problem& problem, bool deterministic);
};

Gemm::Plan::Plan(cublasLtHandle_t handle, const Problem& problem, bool deterministic, bool tf32)
    : beta(problem.residual || problem.shape.accumulate == Accumulate::yes ? 1.0F : 0.0F) {
  describe_operands(problem.shape, tf32);
  choose_algorithm(handle, problem, deterministic);
}

void Gemm::Plan::describe_operands(const GemmShape& s, bool tf32) {
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t& to, DType dtype, std::int64_t rows, std::int64_t cols,
                          std::int64_t stride) {
    const std::int64_t used = stride == 0 ? cols : stride;
    require(used >= cols, "the rows of a matrix overlap");
    check_product(cublasLtMatrixLayoutInit(&to, data_type(dtype), static_cast<std::uint64_t>(cols),
                                           static_cast<std::uint64_t>(rows), used),
                  "cublasLtMatrixLayoutInit", s);
  };
  const auto transpose = [&](cublasLtMatmulDescAttributes_t which, Transpose t) {
    const std::int32_t value = t == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_product(cublasLtMatmulDescSetAttribute(&operation, which, &value, sizeof value),
                  "cublasLtMatmulDescSetAttribute", s);
  };
  check_product(cublasLtMatmulDescInit(&operation, compute_type(s.in, tf32), CUDA_R_32F),
                "cublasLtMatmulDescInit", s);
  transpose(CUBLASLT_MATMUL_DESC_TRANSA, s.b);
  transpose(CUBLASLT_MATMUL_DESC_TRANSB, s.a);
  const bool a_turned = s.a == Transpose::yes, b_turned = s.b == Transpose::yes;
  layout(first, s.in, b_turned ? s.n : s.k, b_turned ? s.k : s.n, 0);
  layout(second, s.in, a_turned ? s.k : s.m, a_turned ? s.m : s.k, s.a_stride);
  layout(result, s.out, s.m, s.n, s.c_stride);
}

void Gemm::Plan::choose_algorithm(cublasLtHandle_t handle, const Problem& problem, bool deterministic) {
  const GemmShape& shape = problem.shape;
  cublasLtMatmulPreferenceOpaque_t preference{};
  check_product(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit", shape);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
    check_product(cublasLtMatmulPreferenceSetAttribute(&preference, which, &value, sizeof value),
                  "cublasLtMatmulPreferenceSetAttribute", shape);
  };
  const auto [a, b, c] = problem.alignment;
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(problem.workspace_bytes));
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_schemes(shape.out, deterministic));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c);

  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates{};
  int count = 0;
  check_product(cublasLtMatmulAlgoGetHeuristic(handle, &operation, &first, &second, &result, &result,
                                               &preference, kCandidates, candidates.data(), &count),
                "cublasLtMatmulAlgoGetHeuristic", shape);
  const auto usable = [&](const cublasLtMatmulHeuristicResult_t& candidate) {
    return candidate.state == CUBLAS_STATUS_SUCCESS &&
           (problem.in_place || adds_out_of_place(candidate.algo));
  };
  const auto end = candidates.begin() + count;  // fastest first, as cuBLASLt estimates
  const auto chosen = std::find_if(candidates.begin(), end, usable);
  if (chosen == end) throw Error(fmt::format("cuBLASLt has no algorithm for {}", describe(shape)));
  algorithm = chosen->algo;
  workspace_bytes = chosen->workspaceSize;
}

Gemm::Gemm(bool deterministic, bool tf32) : deterministic_(deterministic), tf32_(tf32) {
  check(cublasLtCreate(&handle_), "cublasLtCreate");
}

Gemm::~Gemm() {
  plans_.clear();
  cublasLtDestroy(handle_);  // nobody is left whom a failure could tell something
}

Gemm::Plan& Gemm::plan_of(const Problem& problem) {
  std::unique_ptr<Plan>& plan = plans_[problem];
  if (!plan) plan = std::make_unique<Plan>(handle_, problem, deterministic_, tf32_);
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
  Plan& plan = plan_of({.shape = shape,
                        .residual = residual != nullptr,
                        .in_place = added == c,
                        .alignment = {alignment_of(a, a), alignment_of(b, b), alignment_of(c, added)},
                        .workspace_bytes = workspace.bytes()});
  const float alpha = 1;
  check_product(cublasLtMatmul(handle_, &plan.operation, &alpha, b, &plan.first, a, &plan.second, &plan.beta,
                               added, &plan.result, c, &plan.result, &plan.algorithm, workspace.data,
                               plan.workspace_bytes, stream),
                "cublasLtMatmul", shape);
}

}  // namespace llampi::device::cuda
