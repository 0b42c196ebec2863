// src/device/cuda/gemm.hpp without cuBLASLt: sums in float32, one after another. And what else of the
// libraries src/device/cuda asks for.
#include "device/cuda/gemm.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/cuda/cudnn_attention.hpp"
#include "device/cuda/kernels.cuh"

namespace llampi::cuda {
namespace {

constexpr std::int64_t kSpoiled = 1 << 16;  ///< bytes of the workspace that a product overwrites

float read(const void* data, DType dtype, std::int64_t at) {
  float value = 0;
  dispatch(dtype,
           [&](auto tag) { value = to_float(static_cast<const typename decltype(tag)::type*>(data)[at]); });
  return value;
}

void write(void* data, DType dtype, std::int64_t at, float value) {
  dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    static_cast<T*>(data)[at] = from_float<T>(value);
  });
}

/// [rows, cols] in float32, without gaps.
std::vector<float> read_matrix(const void* data, DType dtype, std::int64_t rows, std::int64_t cols,
                               std::int64_t stride, Transpose transpose) {
  std::vector<float> result;
  result.reserve(static_cast<std::size_t>(rows * cols));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      result.push_back(read(data, dtype, transpose == Transpose::yes ? j * stride + i : i * stride + j));
  }
  return result;
}

std::int64_t stride_of(std::int64_t given, std::int64_t cols) { return given == 0 ? cols : given; }

void multiply(const GemmShape& s, const void* a_, const void* b_, void* c, const void* residual) {
  const std::int64_t a_cols = s.a == Transpose::yes ? s.m : s.k, b_cols = s.b == Transpose::yes ? s.k : s.n;
  const std::vector<float> a = read_matrix(a_, s.in, s.m, s.k, stride_of(s.a_stride, a_cols), s.a);
  const std::vector<float> b = read_matrix(b_, s.in, s.k, s.n, b_cols, s.b);
  const void* added = s.accumulate == Accumulate::yes ? c : residual;
  const std::int64_t c_stride = stride_of(s.c_stride, s.n);
  std::vector<float> row(static_cast<std::size_t>(s.n));
  for (std::int64_t i = 0; i < s.m; ++i) {
    std::fill(row.begin(), row.end(), 0.0F);
    for (std::int64_t l = 0; l < s.k; ++l) {
      const float factor = a[static_cast<std::size_t>(i * s.k + l)];
      const float* b_row = &b[static_cast<std::size_t>(l * s.n)];
      for (std::size_t j = 0; j < row.size(); ++j) row[j] += factor * b_row[j];
    }
    for (std::int64_t j = 0; j < s.n; ++j) {
      const float before = added == nullptr ? 0.0F : read(added, s.out, i * c_stride + j);
      write(c, s.out, i * c_stride + j, row[static_cast<std::size_t>(j)] + before);
    }
  }
}

}  // namespace

struct Gemm::Plan {};

Gemm::Gemm(bool deterministic, bool tf32) : deterministic_(deterministic), tf32_(tf32) {}
Gemm::~Gemm() = default;

void Gemm::run(const GemmShape& shape, const void* a, const void* b, void* c, const void* residual,
               void* workspace, std::int64_t workspace_bytes, cudaStream_t stream) {
  require(shape.m > 0 && shape.n > 0 && shape.k > 0, "a matrix product of nothing");
  require(residual == nullptr || shape.accumulate == Accumulate::no, "a product adds to one matrix only");
  require(workspace_bytes == 0 || reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0,
          "workspace not aligned");
  require(shape.out == shape.in || shape.out == DType::float32, "dtype of a product");
  require(c != a && c != b, "a product that overwrites its operand");
  emulation::enqueue(stream, [=] {
    if (workspace_bytes > 0)
      std::memset(workspace, 0xFF, static_cast<std::size_t>(std::min(workspace_bytes, kSpoiled)));
    multiply(shape, a, b, c, residual);
  });
}

std::unique_ptr<CudnnAttention> make_cudnn_attention(bool) { return nullptr; }

}  // namespace llampi::cuda

extern "C" {

std::size_t cublasLtGetVersion() { return 0; }
const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "emulated"; }

}  // extern "C"
