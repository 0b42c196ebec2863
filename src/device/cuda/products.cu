// SPDX-License-Identifier: Apache-2.0
// Operations that are a matrix product and a pass over its rows.
#include "device/cuda/cuda_device.hpp"
#include "device/cuda/elementwise.hpp"
#include "device/cuda/kernels.cuh"
#include "device/fp8_checks.hpp"
#include "device/rope_of.hpp"

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

  /// dx = dy weight.   dy [T, out], dx [T, in]
  void input_gradient(const Tensor& dy, const Tensor& weight, const Tensor& dx) {
    const std::int64_t rows = dx.rows, in = dx.cols, out = weight.rows;
    multiply({.m = rows, .n = in, .k = out, .in = dx.dtype, .out = dx.dtype},
             elements_of(dy, dx.dtype, rows, out, "dy"), elements_of(weight, dx.dtype, out, in, "weight"),
             elements_of(dx, dx.dtype, rows, in, "dx"));
  }

  /// dweight (+)= dy^T x, unless it is empty.   dy [T, out], x [T, in]
  void weight_gradient(const Tensor& dy, const Tensor& x, const Tensor& dweight_, Accumulate accumulate) {
    const std::int64_t rows = x.rows, in = x.cols, out = dy.cols;
    void* const dweight = weight_gradient_of(dweight_, x.dtype, out, in, "dweight");
    if (dweight == nullptr) return;
    const GemmShape shape{.m = out,
                          .n = in,
                          .k = rows,
                          .a = Transpose::yes,
                          .in = x.dtype,
                          .out = dweight_.dtype,
                          .accumulate = accumulate};
    multiply(shape, elements_of(dy, x.dtype, rows, out, "dy"), elements_of(x, x.dtype, rows, in, "x"),
             dweight);
  }

 private:
  void multiply(const GemmShape& shape, const void* a, const void* b, void* c,
                const void* residual = nullptr) {
    gemm_.run(shape, {a, b, c, residual}, workspace_, stream_);
  }

  Gemm& gemm_;
  Tensor workspace_;
  cudaStream_t stream_;
};

/// @throws Error naming the GPU that has none
void check_has_fp8_products(const cudaDeviceProp& gpu, Fp8Scaling scaling) {
  const auto lacks = [&](const char* what) {
    throw Error(fmt::format("{} has compute capability {}.{}, but products in 8 bits {}", gpu.name, gpu.major,
                            gpu.minor, what));
  };
  if (!has_fp8_products(gpu.major, gpu.minor)) lacks("need 8.9 or newer");
  if (scaling != Fp8Scaling::tensor && !has_fp8_block_products(gpu.major, gpu.minor))
    lacks("with scales of blocks need 9.0");
}

/// What a matrix in 8 bits is multiplied by: the first of Fp8Scaling::tensor, or one for each block or tile.
const float* factors_of(const Tensor& scale, const char* name) {
  const auto* const factors = elements_of<float>(scale, DType::float32, scale.rows, scale.cols, name);
  require(reinterpret_cast<std::uintptr_t>(factors) % 16 == 0, "scales are aligned to 16 bytes");
  return factors;
}

}  // namespace

void CudaDevice::execute(const op::QkvRope& o) {
  const Tensor& projected = o.transform.has_norms() ? o.transform.product : o.qkv;
  Products(*gemm_, workspace_, compute()).forward(o.x, o.weight, projected);
  add_adapters(o.adapters, o.x, projected);
  apply_rope(rope_of(o), compute());
}

void CudaDevice::execute(const op::ProjectionResidual& o) {
  require(static_cast<bool>(o.residual), "projection_residual without a residual");
  Products(*gemm_, workspace_, compute()).forward(o.x, o.weight, o.y, o.residual);
  add_adapters(o.adapters, o.x, o.y);
}

void CudaDevice::execute(const op::InputGradient& o) {
  Products(*gemm_, workspace_, compute()).input_gradient(o.dy, o.weight, o.dx);
  adapter_input_gradients(o);
}

void CudaDevice::execute(const op::WeightGradient& o) {
  Products(*gemm_, workspace_, compute()).weight_gradient(o.dy, o.x, o.dweight, o.accumulate_dweight);
  adapter_weight_gradients(o);
}

void CudaDevice::execute(const op::GateUpSwiglu& o) {
  Products(*gemm_, workspace_, compute()).forward(o.x, o.weight, o.gate_up);
  add_adapters(o.adapters, o.x, o.gate_up);
  apply_swiglu(o.gate_up, o.activated, compute());
}

void CudaDevice::execute(const op::Fp8Product& o) {
  const std::int64_t m = o.y.rows, n = o.y.cols, k = o.a.cols;
  check_fp8_product(o);
  const Fp8Scaling a_scaling = fp8_scaling_of(o.a_scale, m, k), b_scaling = fp8_scaling_of(o.b_scale, n, k);
  check_has_fp8_products(properties_, a_scaling);
  const GemmShape shape{.m = m,
                        .n = n,
                        .k = k,
                        .b = Transpose::yes,
                        .in = o.a.dtype,
                        .out = o.y.dtype,
                        .in_b = o.b.dtype,
                        .a_scaling = a_scaling,
                        .b_scaling = b_scaling,
                        .fast_accumulation = o.fast_accumulation,
                        .accumulate = o.accumulate_y};
  gemm_->run(shape,
             {.a = o.a.data,
              .b = o.b.data,
              .c = elements_of(o.y, o.y.dtype, m, n, "y"),
              .residual = optional_elements_of(o.residual, o.y.dtype, m, n, "residual"),
              .a_factor = factors_of(o.a_scale, "a_scale"),
              .b_factor = factors_of(o.b_scale, "b_scale")},
             workspace_, compute());
}

void CudaDevice::execute(const op::Linear& o) {
  Products(*gemm_, workspace_, compute()).forward(o.x, o.weight, o.y);
}

}  // namespace llampi::device::cuda
