// SPDX-License-Identifier: Apache-2.0
// cuBLASLt as its documentation has it, for src/device/cuda/gemm.cpp: matrices by columns, sums in float32,
// one after another. What a real one would refuse, or get wrong without a word, ends with an Error here: an
// algorithm that was chosen for another problem, pointers that are less aligned than was promised.
#include "emulator/seams/cublaslt.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "device/cuda/kernels.cuh"

using llampi::DType;
using llampi::require;
using llampi::emulator::Algorithm;
using llampi::emulator::Product;

namespace {

constexpr std::size_t kSpoiled = 1 << 16;  ///< bytes of the workspace that a product overwrites
/// What is offered unless a test says otherwise: the first takes as much of the workspace.
const std::vector<Algorithm> kUsual{{.workspace_bytes = kSpoiled}, {}};

// What the opaque structures of the header hold.
struct Layout {
  cudaDataType_t type;
  std::uint64_t rows, cols;
  std::int64_t ld;
  auto operator<=>(const Layout&) const = default;
};
struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transpose[2];
  auto operator<=>(const Operation&) const = default;
};
struct Preference {
  std::uint64_t workspace_bytes;
  std::uint32_t reductions;
  std::uint32_t alignment[4];
};
/// Of cublasLtMatmulAlgo_t: all that the choice rests on.
struct Choice {
  std::int32_t index;  ///< into `searches`
};
struct Search {
  Algorithm algorithm;
  Operation operation;
  Layout layouts[4];
  Preference preference;
};

std::vector<Algorithm> offered = kUsual;
std::vector<Search> searches;
std::vector<Product> products;
int searches_asked = 0;

template <class T, class Opaque>
T read_as(const Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque) && std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, opaque, sizeof value);
  return value;
}
template <class T, class Opaque>
void write_as(Opaque* opaque, const T& value) {
  static_assert(sizeof(T) <= sizeof(Opaque) && std::is_trivially_copyable_v<T>);
  std::memcpy(opaque, &value, sizeof value);
}

DType dtype_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_32F:
      return DType::float32;
    case CUDA_R_16BF:
      return DType::bfloat16;
    case CUDA_R_16F:
      return DType::float16;
    default:
      throw llampi::Error("emulated cuBLASLt: a data type that it does not know");
  }
}

/// The rows of the documentation's table of cublasLtMatmul() for float32 scale factors.
bool is_supported(const Operation& operation, const Layout (&m)[4]) {
  if (operation.scale != CUDA_R_32F || m[0].type != m[1].type || m[2].type != m[3].type) return false;
  if (m[0].type == CUDA_R_32F) {
    return m[2].type == CUDA_R_32F &&
           (operation.compute == CUBLAS_COMPUTE_32F || operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
  }
  return operation.compute == CUBLAS_COMPUTE_32F && (m[2].type == m[0].type || m[2].type == CUDA_R_32F);
}

/// D = op(A) op(B) + C: [m, n] = [m, k] [k, n] + [m, n], columns that do not overlap.
bool fits_together(const Operation& operation, const Layout (&layouts)[4]) {
  const auto rows = [&](int i) {
    return operation.transpose[i] == CUBLAS_OP_T ? layouts[i].cols : layouts[i].rows;
  };
  const auto cols = [&](int i) {
    return operation.transpose[i] == CUBLAS_OP_T ? layouts[i].rows : layouts[i].cols;
  };
  for (const Layout& layout : layouts) {
    if (layout.rows == 0 || layout.cols == 0 || layout.ld < static_cast<std::int64_t>(layout.rows))
      return false;
  }
  return cols(0) == rows(1) && layouts[2].rows == rows(0) && layouts[2].cols == cols(1) &&
         layouts[3].rows == rows(0) && layouts[3].cols == cols(1);
}

bool is_allowed(const Algorithm& algorithm, const Preference& preference) {
  const bool reduces = algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_NONE ||
                       (preference.reductions & algorithm.reduction) != 0;
  return reduces && algorithm.workspace_bytes <= preference.workspace_bytes &&
         std::ranges::all_of(preference.alignment, [&](auto a) { return a >= algorithm.alignment; });
}

float read(const void* data, DType dtype, std::int64_t at) {
  float value = 0;
  llampi::device::cuda::dispatch(dtype, [&](auto tag) {
    value = llampi::device::cuda::to_float(static_cast<const typename decltype(tag)::type*>(data)[at]);
  });
  return value;
}

void write(void* data, DType dtype, std::int64_t at, float value) {
  llampi::device::cuda::dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    static_cast<T*>(data)[at] = llampi::device::cuda::from_float<T>(value);
  });
}

/// op(matrix) in float32, row by row, without gaps.
std::vector<float> rows_of(const void* data, const Layout& m, std::int32_t transpose) {
  const auto rows = static_cast<std::int64_t>(m.rows), cols = static_cast<std::int64_t>(m.cols);
  const DType dtype = dtype_of(m.type);
  std::vector<float> result;
  result.reserve(m.rows * m.cols);
  if (transpose == CUBLAS_OP_T) {
    for (std::int64_t j = 0; j < cols; ++j)
      for (std::int64_t i = 0; i < rows; ++i) result.push_back(read(data, dtype, j * m.ld + i));
  } else {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) result.push_back(read(data, dtype, j * m.ld + i));
  }
  return result;
}

/// D = alpha op(A) op(B) + beta C; C is not read where beta is 0.
void multiply(const Search& search, float alpha, const void* a_, const void* b_, float beta, const void* c,
              void* d) {
  const auto& [ma, mb, mc, md] = search.layouts;
  const std::vector<float> a = rows_of(a_, ma, search.operation.transpose[0]);
  const std::vector<float> b = rows_of(b_, mb, search.operation.transpose[1]);
  const std::size_t m = md.rows, n = md.cols, k = a.size() / m;
  std::vector<float> row(n);
  for (std::size_t i = 0; i < m; ++i) {
    std::fill(row.begin(), row.end(), 0.0F);
    for (std::size_t l = 0; l < k; ++l) {
      const float factor = a[i * k + l];
      const float* const b_row = &b[l * n];
      for (std::size_t j = 0; j < n; ++j) row[j] += factor * b_row[j];
    }
    for (std::size_t j = 0; j < n; ++j) {
      const auto at = [&](const Layout& of) {
        return static_cast<std::int64_t>(j) * of.ld + static_cast<std::int64_t>(i);
      };
      const float before = beta == 0 ? 0.0F : beta * read(c, dtype_of(mc.type), at(mc));
      write(d, dtype_of(md.type), at(md), alpha * row[j] + before);
    }
  }
}

void check_pointers(const Search& search, const std::array<const void*, 4>& pointers) {
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointers[i]);
    require(address % search.preference.alignment[i] == 0, "a matrix is less aligned than was promised");
    const DType dtype = dtype_of(search.layouts[i].type);
    require(address % static_cast<std::uintptr_t>(llampi::size_of(dtype)) == 0, "a matrix is not aligned");
  }
  const void* const d = pointers[3];
  require(d != pointers[0] && d != pointers[1], "a product that overwrites its operand");
  require(d == pointers[2] || search.algorithm.out_of_place, "the algorithm works in place only");
}

}  // namespace

namespace llampi::emulator {

void set_algorithms(std::vector<Algorithm> algorithms) { offered = std::move(algorithms); }
void set_usual_algorithms() { offered = kUsual; }
std::vector<Product> take_products() { return std::exchange(products, {}); }
int take_searches() { return std::exchange(searches_asked, 0); }

}  // namespace llampi::emulator

extern "C" {

std::size_t cublasLtGetVersion() { return 0; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "emulated"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&offered);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t size,
                                                 cudaDataType type, std::uint64_t rows, std::uint64_t cols,
                                                 std::int64_t ld) {
  if (size < sizeof *layout) return CUBLAS_STATUS_ALLOC_FAILED;
  write_as(layout, Layout{type, rows, cols, ld});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation, std::size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  if (size < sizeof *operation) return CUBLAS_STATUS_ALLOC_FAILED;
  write_as(operation, Operation{compute, scale, {CUBLAS_OP_N, CUBLAS_OP_N}});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t bytes) {
  if (bytes != sizeof(std::int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  auto changed = read_as<Operation>(operation);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      std::memcpy(&changed.transpose[0], value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      std::memcpy(&changed.transpose[1], value, bytes);
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  write_as(operation, changed);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     std::size_t size) {
  if (size < sizeof *preference) return CUBLAS_STATUS_ALLOC_FAILED;
  write_as(preference, Preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  auto changed = read_as<Preference>(preference);
  const auto set = [&](auto& to) {
    if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, value, bytes);
    write_as(preference, changed);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(changed.workspace_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(changed.reductions);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(changed.alignment[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(changed.alignment[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(changed.alignment[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(changed.alignment[3]);
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  ++searches_asked;
  *count = 0;
  Search search{{},
                read_as<Operation>(operation),
                {read_as<Layout>(a), read_as<Layout>(b), read_as<Layout>(c), read_as<Layout>(d)},
                read_as<Preference>(preference)};
  if (!fits_together(search.operation, search.layouts)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!is_supported(search.operation, search.layouts)) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const Algorithm& algorithm : offered) {
    if (*count == wanted || !is_allowed(algorithm, search.preference)) continue;
    search.algorithm = algorithm;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    write_as(&result.algo, Choice{static_cast<std::int32_t>(searches.size())});
    result.state = algorithm.runs ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    result.workspaceSize = algorithm.workspace_bytes;
    searches.push_back(search);
  }
  return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute, void* value,
                                                 std::size_t bytes, std::size_t* written) {
  if (attribute != CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT || bytes != sizeof(std::int32_t))
    return CUBLAS_STATUS_INVALID_VALUE;
  const Search& search = searches.at(static_cast<std::size_t>(read_as<Choice>(algorithm).index));
  const std::int32_t supported = search.algorithm.out_of_place ? 1 : 0;
  std::memcpy(value, &supported, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  const Search search = searches.at(static_cast<std::size_t>(read_as<Choice>(algorithm).index));
  const Layout layouts[] = {read_as<Layout>(layout_a), read_as<Layout>(layout_b), read_as<Layout>(layout_c),
                            read_as<Layout>(layout_d)};
  require(read_as<Operation>(operation) == search.operation && std::ranges::equal(layouts, search.layouts),
          "an algorithm that was chosen for another problem");
  if (!search.algorithm.runs) return CUBLAS_STATUS_NOT_SUPPORTED;
  check_pointers(search, {a, b, c, d});
  require(workspace_bytes >= search.algorithm.workspace_bytes, "the workspace is too small");
  require(workspace_bytes == 0 || reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0,
          "the workspace is not aligned");
  const float factor = *static_cast<const float*>(alpha), of_c = *static_cast<const float*>(beta);
  products.push_back(
      {search.algorithm, search.operation.compute, of_c, c == d, search.preference.reductions});
  llampi::emulator::enqueue(stream, [=] {
    if (workspace_bytes > 0) std::memset(workspace, 0xFF, std::min(workspace_bytes, kSpoiled));
    multiply(search, factor, a, b, of_c, c, d);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
