// SPDX-License-Identifier: Apache-2.0
// Operations that are a matrix product and a pass over its rows.
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/elementwise.hpp"
#include "device/cuda/kernels.cuh"

namespace llampi::device::cuda {
namespace {

/// Matrix products with a weight [out, in], as Linear has it, on one stream.
class Products {
 public:
  Products(Gemm& gemm, const Tensor& workspace, cudaStream_t stream)
      : gemm_(gemm), workspace_(workspace), stream_(stream) {}

  /// y = x weight^T (+ residual, unless it is empty).   x [T, in], y [T, out]
  void forward(const Tensor& x, const Tensor& weight, const Tensor& y, const Tensor& residual = {}) {
    const std::int64_t rows = x.rows, in = x.cols, out = weight.rows;
    const GemmShape shape{.m = rows, .n = out, .k = in, .b = Transpose::yes, .in = x.dtype, .out = x.dtype};
    multiply(shape, elements_of(x, x.dtype, rows, in, "x"), elements_of(weight, x.dtype, out, in, "weight"),
             elements_of(y, x.dtype, rows, out, "y"),
             optional_elements_of(residual, x.dtype, rows, out, "residual"));
  }

  /// dx = dy weight; dweight (+)= dy^T x in float32, unless it is empty.   dy [T, out], x, dx [T, in]
  void backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& dx,
                const Tensor& dweight_, Accumulate accumulate) {
    const std::int64_t rows = x.rows, in = x.cols, out = weight.rows;
    const void* const gradient = elements_of(dy, x.dtype, rows, out, "dy");
    const void* const input = elements_of(x, x.dtype, rows, in, "x");
    void* const dweight = optional_elements_of(dweight_, DType::float32, out, in, "dweight");
    multiply({.m = rows, .n = in, .k = out, .in = x.dtype, .out = x.dtype}, gradient,
             elements_of(weight, x.dtype, out, in, "weight"), elements_of(dx, x.dtype, rows, in, "dx"));
    if (dweight == nullptr) return;
    const GemmShape shape{.m = out,
                          .n = in,
                          .k = rows,
                          .a = Transpose::yes,
                          .in = x.dtype,
                          .out = DType::float32,
                          .accumulate = accumulate};
    multiply(shape, gradient, input, dweight);
  }

 private:
  void multiply(const GemmShape& shape, const void* a, const void* b, void* c,
                const void* residual = nullptr) {
    gemm_.run(shape, a, b, c, residual, workspace_.data, workspace_.bytes(), stream_);
  }

  Gemm& gemm_;
  Tensor workspace_;
  cudaStream_t stream_;
};

}  // namespace

void CudaDevice::qkv_rope(const Batch& batch, Tensor x, Tensor weight, Tensor rope, AttentionShape shape,
                          Tensor qkv) {
  Products(*gemm_, workspace_, compute()).forward(x, weight, qkv);
  apply_rope(batch, rope, shape, Rotation::forward, qkv, compute());
  progress();
}

void CudaDevice::qkv_rope_backward(const Batch& batch, Tensor dqkv, Tensor x, Tensor weight, Tensor rope,
                                   AttentionShape shape, Tensor dx, Tensor dweight,
                                   Accumulate accumulate_dweight) {
  apply_rope(batch, rope, shape, Rotation::backward, dqkv, compute());
  Products(*gemm_, workspace_, compute()).backward(dqkv, x, weight, dx, dweight, accumulate_dweight);
  progress();
}

void CudaDevice::projection_residual(Tensor x, Tensor weight, Tensor residual, Tensor y) {
  require(static_cast<bool>(residual), "projection_residual without a residual");
  Products(*gemm_, workspace_, compute()).forward(x, weight, y, residual);
  progress();
}

void CudaDevice::projection_backward(Tensor dy, Tensor x, Tensor weight, Tensor dx, Tensor dweight,
                                     Accumulate accumulate_dweight) {
  Products(*gemm_, workspace_, compute()).backward(dy, x, weight, dx, dweight, accumulate_dweight);
  progress();
}

void CudaDevice::gate_up_swiglu(Tensor x, Tensor weight, Tensor gate_up, Tensor activated) {
  Products(*gemm_, workspace_, compute()).forward(x, weight, gate_up);
  apply_swiglu(gate_up, activated, compute());
  progress();
}

void CudaDevice::gate_up_swiglu_backward(Tensor dactivated, Tensor gate_up, Tensor x, Tensor weight,
                                         Tensor dx, Tensor dweight, Accumulate accumulate_dweight) {
  apply_swiglu_backward(dactivated, gate_up, compute());
  Products(*gemm_, workspace_, compute()).backward(gate_up, x, weight, dx, dweight, accumulate_dweight);
  progress();
}

void CudaDevice::linear(Tensor x, Tensor weight, Tensor y) {
  Products(*gemm_, workspace_, compute()).forward(x, weight, y);
  progress();
}

}  // namespace llampi::device::cuda
