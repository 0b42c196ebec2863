// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt. What is asked for, and which algorithm is taken, gemm.cpp decides.
#include <cublasLt.h>

#include <array>

#include "device/cuda/common.hpp"
#include "device/cuda/product_library.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/float8.hpp"

namespace llampi::device::cuda {
namespace {

constexpr int kCandidates = 32;

/// @throws Error naming the call and cuBLASLt's reason
void check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(
      fmt::format("{}: {} ({})", call, cublasLtGetStatusString(status), cublasLtGetStatusName(status)));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return CUDA_R_32F;
    case DType::bfloat16:
      return CUDA_R_16BF;
    case DType::float16:
      return CUDA_R_16F;
    case DType::float8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case DType::float8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      throw Error(fmt::format("the GPU has no matrix products in {}", to_string(dtype)));
  }
}

/// CUBLASLT_REDUCTION_SCHEME_INPLACE adds each part to the output as it comes; it and ..._OUTPUT_TYPE also
/// round between the parts if the output is narrow. Apart from that, cuBLAS gives the same bits in every run
/// on the same kind of GPU where the caller provides the workspace (cuBLAS documentation, "Results
/// Reproducibility").
std::uint32_t reduction_schemes(PartialSums sums) {
  return sums == PartialSums::any ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

#if CUBLAS_VERSION >= 120900
std::int32_t scale_mode(Fp8Scaling scaling) {
  if (scaling == Fp8Scaling::tiles) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  return scaling == Fp8Scaling::blocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                       : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}
#endif

struct TimingEvent {
  TimingEvent() { check(cudaEventCreate(&event), "cudaEventCreate"); }
  ~TimingEvent() { cudaEventDestroy(event); }
  TimingEvent(const TimingEvent&) = delete;
  TimingEvent& operator=(const TimingEvent&) = delete;

  cudaEvent_t event = nullptr;
};

class CublasProduct final : public LibraryProduct {
 public:
  CublasProduct(cublasLtHandle_t handle, const ColumnProduct& product, const ColumnOperands& operands)
      : handle_(handle),
        beta_(product.adds ? 1.0F : 0.0F),
        has_factors_(is_float8(product.first.dtype)),
        result_matrix_(product.result) {
    describe(product);
    set_factors(operands);
    ask(product);
  }

  std::vector<Algorithm> algorithms() const override {
    std::vector<Algorithm> algorithms;
    for (int i = 0; i < count_; ++i) {
      const cublasLtMatmulHeuristicResult_t& candidate = candidates_[static_cast<std::size_t>(i)];
      algorithms.push_back(
          {candidate.state == CUBLAS_STATUS_SUCCESS, candidate.workspaceSize, name_of(candidate.algo)});
    }
    return algorithms;
  }

  bool adds_out_of_place(std::size_t algorithm) const override {
    std::int32_t supported = 0;
    std::size_t written = 0;
    check_cublas(cublasLtMatmulAlgoCapGetAttribute(&candidates_.at(algorithm).algo,
                                                   CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT, &supported,
                                                   sizeof supported, &written),
                 "cublasLtMatmulAlgoCapGetAttribute");
    return supported != 0;
  }

  void run(const Way& way, const ColumnOperands& operands, void* workspace, cudaStream_t stream) override {
    set_factors(operands);
    const cublasLtMatmulHeuristicResult_t& chosen = candidates_.at(way.algorithm);
    const ColumnOperands left = copied(way, result_matrix_, operands, stream);
    check_cublas(cublasLtMatmul(handle_, &operation_, &left.scale, left.first, &first_, left.second, &second_,
                                &beta_, left.added, &result_, left.result, &result_, &chosen.algo, workspace,
                                chosen.workspaceSize, stream),
                 "cublasLtMatmul");
  }

  double time(const Way& way, const ColumnOperands& operands, void* workspace, cudaStream_t stream,
              int runs) override {
    const TimingEvent begin, end;
    run(way, operands, workspace, stream);  // meanwhile the host gives the others to the stream
    check(cudaEventRecord(begin.event, stream), "cudaEventRecord");
    for (int i = 0; i < runs; ++i) run(way, operands, workspace, stream);
    check(cudaEventRecord(end.event, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end.event), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin.event, end.event), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1000 / runs;
  }

 private:
  /// The structure may be kept and used with the same version of the library (cuBLAS documentation,
  /// cublasLtMatmulAlgo_t).
  static std::string name_of(const cublasLtMatmulAlgo_t& algorithm) {
    std::string name;
    for (const std::uint64_t word : algorithm.data)
      name += fmt::format("{}{:x}", name.empty() ? "" : "-", word);
    return name;
  }

  void describe(const ColumnProduct& product) {
    const auto layout = [](cublasLtMatrixLayoutOpaque_t& to, const ColumnMatrix& matrix) {
      check_cublas(
          cublasLtMatrixLayoutInit(&to, data_type(matrix.dtype), static_cast<std::uint64_t>(matrix.rows),
                                   static_cast<std::uint64_t>(matrix.cols), matrix.stride),
          "cublasLtMatrixLayoutInit");
    };
    const auto transpose = [&](cublasLtMatmulDescAttributes_t which, Transpose t) {
      set(which, std::int32_t{t == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N});
    };
    check_cublas(
        cublasLtMatmulDescInit(&operation_, product.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                               CUDA_R_32F),
        "cublasLtMatmulDescInit");
    transpose(CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_first);
    transpose(CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_second);
    if (product.fast_accumulation) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    if (product.multiprocessors > 0)
      set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{product.multiprocessors});
    describe_factors(product.first_scaling, product.second_scaling);
    layout(first_, product.first);
    layout(second_, product.second);
    layout(result_, product.result);
  }

  /// What is not said is one factor.
  void describe_factors(Fp8Scaling first, Fp8Scaling second) {
    if (first == Fp8Scaling::tensor && second == Fp8Scaling::tensor) return;
#if CUBLAS_VERSION >= 120900
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(first));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(second));
#else
    throw Error("products with scales of blocks need cuBLASLt 12.9 or newer");
#endif
  }

  /// They lie elsewhere from call to call; cublasLtMatmul() has read their addresses when it returns.
  void set_factors(const ColumnOperands& operands) {
    if (!has_factors_) return;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(operands.first_factor));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(operands.second_factor));
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t which, T value) {
    check_cublas(cublasLtMatmulDescSetAttribute(&operation_, which, &value, sizeof value),
                 "cublasLtMatmulDescSetAttribute");
  }

  void ask(const ColumnProduct& product) {
    cublasLtMatmulPreferenceOpaque_t preference{};
    check_cublas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
      check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, which, &value, sizeof value),
                   "cublasLtMatmulPreferenceSetAttribute");
    };
    const auto [first, second, result] = product.alignment;
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(product.workspace_bytes));
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_schemes(product.partial_sums));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, first);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, second);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result);
    check_cublas(cublasLtMatmulAlgoGetHeuristic(handle_, &operation_, &first_, &second_, &result_, &result_,
                                                &preference, kCandidates, candidates_.data(), &count_),
                 "cublasLtMatmulAlgoGetHeuristic");
  }

  cublasLtHandle_t handle_;
  float beta_;
  bool has_factors_;
  ColumnMatrix result_matrix_;
  cublasLtMatmulDescOpaque_t operation_{};
  cublasLtMatrixLayoutOpaque_t first_{}, second_{}, result_{};
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates_{};
  int count_ = 0;
};

class Cublas final : public ProductLibrary {
 public:
  Cublas() { check_cublas(cublasLtCreate(&handle_), "cublasLtCreate"); }
  ~Cublas() override { cublasLtDestroy(handle_); }  // nobody is left whom a failure could tell something
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  std::unique_ptr<LibraryProduct> product(const ColumnProduct& product,
                                          const ColumnOperands& operands) override {
    return std::make_unique<CublasProduct>(handle_, product, operands);
  }

 private:
  cublasLtHandle_t handle_ = nullptr;
};

}  // namespace

std::unique_ptr<ProductLibrary> make_product_library() { return std::make_unique<Cublas>(); }

bool product_library_has_blocks() {
  constexpr std::size_t kFirst = 120900;
  return CUBLAS_VERSION >= kFirst && cublasLtGetVersion() >= kFirst;
}

std::string product_library_version() {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace llampi::device::cuda
