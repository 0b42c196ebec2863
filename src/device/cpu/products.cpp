// SPDX-License-Identifier: Apache-2.0
// Operations that are a matrix product and a pass over its rows.
#include <cstring>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"

namespace llampi::device {

void CpuDevice::product_backward(const float* dy, const float* x, const float* w, std::int64_t rows,
                                 std::int64_t out, std::int64_t in, float* dx, float* dw,
                                 Accumulate accumulate) {
  gemm_(product_nn(dy, w, dx, rows, in, out));
  if (dw == nullptr) return;
  Product weight_gradient = product_tn(dy, x, dw, out, in, rows);
  weight_gradient.beta = beta(accumulate);
  gemm_(weight_gradient);
}

void CpuDevice::rotate(const Batch& batch, float* qkv, Tensor rope_, AttentionShape shape,
                       float direction) const {
  const std::int64_t tokens = batch.tokens.cols, half = shape.head_dim / 2;
  const float* rope = floats(rope_, rope_.rows, shape.head_dim, "rope");
  const std::int32_t* positions = integers(batch.positions, tokens, "positions");
  for (std::int64_t t = 0; t < tokens; ++t) {
    require(positions[t] >= 0 && positions[t] < rope_.rows, "position outside of the RoPE table");
  }
  parallel_ranges(threads_, tokens, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* cosines = rope + positions[t] * shape.head_dim;
      kernels_.rope(shape.query_heads + shape.key_value_heads, half, cosines, cosines + half, direction,
                    qkv + t * shape.qkv_cols());
    }
  });
}

void CpuDevice::qkv_rope(const Batch& batch, Tensor x_, Tensor weight_, Tensor rope, AttentionShape shape,
                         Tensor qkv_) {
  const std::int64_t tokens = batch.tokens.cols, hidden = x_.cols, out = shape.qkv_cols();
  const float* x = floats(x_, tokens, hidden, "x");
  const float* weight = floats(weight_, out, hidden, "weight");
  float* qkv = floats(qkv_, tokens, out, "qkv");
  gemm_(product_nt(x, weight, qkv, tokens, out, hidden));
  rotate(batch, qkv, rope, shape, 1);
  progress();
}

void CpuDevice::qkv_rope_backward(const Batch& batch, Tensor dqkv_, Tensor x_, Tensor weight_, Tensor rope,
                                  AttentionShape shape, Tensor dx_, Tensor dweight_,
                                  Accumulate accumulate_dweight) {
  const std::int64_t tokens = batch.tokens.cols, hidden = x_.cols, out = shape.qkv_cols();
  const float* x = floats(x_, tokens, hidden, "x");
  const float* weight = floats(weight_, out, hidden, "weight");
  float* dqkv = floats(dqkv_, tokens, out, "dqkv");
  float* dx = floats(dx_, tokens, hidden, "dx");
  float* dweight = gradient_floats(dweight_, out, hidden, "dweight");
  rotate(batch, dqkv, rope, shape, -1);
  product_backward(dqkv, x, weight, tokens, out, hidden, dx, dweight, accumulate_dweight);
  progress();
}

void CpuDevice::projection_residual(Tensor x_, Tensor weight_, Tensor residual_, Tensor y_) {
  const std::int64_t rows = x_.rows, in = x_.cols, out = weight_.rows;
  const float* x = floats(x_, rows, in, "x");
  const float* weight = floats(weight_, out, in, "weight");
  const float* residual = floats(residual_, rows, out, "residual");
  float* y = floats(y_, rows, out, "y");
  if (y != residual) {
    parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      std::memcpy(y + begin * out, residual + begin * out,
                  static_cast<std::size_t>((end - begin) * out) * sizeof(float));
    });
  }
  Product product = product_nt(x, weight, y, rows, out, in);
  product.beta = 1;
  gemm_(product);
  progress();
}

void CpuDevice::projection_backward(Tensor dy_, Tensor x_, Tensor weight_, Tensor dx_, Tensor dweight_,
                                    Accumulate accumulate_dweight) {
  const std::int64_t rows = x_.rows, in = x_.cols, out = weight_.rows;
  const float* dy = floats(dy_, rows, out, "dy");
  const float* x = floats(x_, rows, in, "x");
  const float* weight = floats(weight_, out, in, "weight");
  float* dx = floats(dx_, rows, in, "dx");
  float* dweight = gradient_floats(dweight_, out, in, "dweight");
  product_backward(dy, x, weight, rows, out, in, dx, dweight, accumulate_dweight);
  progress();
}

void CpuDevice::gate_up_swiglu(Tensor x_, Tensor weight_, Tensor gate_up_, Tensor activated_) {
  const std::int64_t rows = x_.rows, hidden = x_.cols, width = weight_.rows / 2;
  const float* x = floats(x_, rows, hidden, "x");
  const float* weight = floats(weight_, 2 * width, hidden, "weight");
  float* gate_up = floats(gate_up_, rows, 2 * width, "gate_up");
  gemm_(product_nt(x, weight, gate_up, rows, 2 * width, hidden));
  swiglu(gate_up_, activated_);
}

void CpuDevice::swiglu(Tensor gate_up_, Tensor activated_) {
  const std::int64_t rows = activated_.rows, width = activated_.cols;
  const float* gate_up = floats(gate_up_, rows, 2 * width, "gate_up");
  float* activated = floats(activated_, rows, width, "activated");
  parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* gate = gate_up + t * 2 * width;
      kernels_.swiglu(width, gate, gate + width, activated + t * width);
    }
  });
  progress();
}

void CpuDevice::gate_up_swiglu_backward(Tensor dactivated_, Tensor gate_up_, Tensor x_, Tensor weight_,
                                        Tensor dx_, Tensor dweight_, Accumulate accumulate_dweight) {
  const std::int64_t rows = x_.rows, hidden = x_.cols, width = weight_.rows / 2;
  const float* dactivated = floats(dactivated_, rows, width, "dactivated");
  const float* x = floats(x_, rows, hidden, "x");
  const float* weight = floats(weight_, 2 * width, hidden, "weight");
  float* gate_up = floats(gate_up_, rows, 2 * width, "gate_up");
  float* dx = floats(dx_, rows, hidden, "dx");
  float* dweight = gradient_floats(dweight_, 2 * width, hidden, "dweight");
  parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* gate = gate_up + t * 2 * width;
      kernels_.swiglu_backward(width, dactivated + t * width, gate, gate + width);
    }
  });
  product_backward(gate_up, x, weight, rows, 2 * width, hidden, dx, dweight, accumulate_dweight);
  progress();
}

void CpuDevice::linear(Tensor x_, Tensor weight_, Tensor y_) {
  const std::int64_t rows = x_.rows, in = x_.cols, out = weight_.rows;
  gemm_(product_nt(floats(x_, rows, in, "x"), floats(weight_, out, in, "weight"), floats(y_, rows, out, "y"),
                   rows, out, in));
  progress();
}

}  // namespace llampi::device
