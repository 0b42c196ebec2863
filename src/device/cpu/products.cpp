// SPDX-License-Identifier: Apache-2.0
// Operations that are a matrix product and a pass over its rows.
#include <algorithm>
#include <cstring>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"
#include "device/rope_of.hpp"

namespace llampi::device {

void CpuDevice::product_backward(const LinearBackward& l) {
  gemm_(product_nn(l.dy, l.w, l.dx, l.rows, l.in, l.out));
  if (l.dw == nullptr) return;
  Product weight_gradient = product_tn(l.dy, l.x, l.dw, l.out, l.in, l.rows);
  weight_gradient.beta = beta(l.accumulate);
  gemm_(weight_gradient);
}

void CpuDevice::execute(const op::QkvRope& o) {
  const std::int64_t tokens = o.positions.cols, hidden = o.x.cols, out = o.shape.qkv_cols();
  const float* x = floats(o.x, tokens, hidden, "x");
  const float* weight = floats(o.weight, out, hidden, "weight");
  const Tensor& projected = o.transform.has_norms() ? o.transform.product : o.qkv;
  gemm_(product_nt(x, weight, floats(projected, tokens, out, "qkv"), tokens, out, hidden));
  add_adapters(o.adapters, o.x, projected);
  execute(rope_of(o));
}

void CpuDevice::execute(const op::QkvRopeBackward& o) {
  const std::int64_t tokens = o.positions.cols, hidden = o.x.cols, out = o.shape.qkv_cols();
  const float* x = floats(o.x, tokens, hidden, "x");
  const float* weight = floats(o.weight, out, hidden, "weight");
  float* dqkv = floats(o.dqkv, tokens, out, "dqkv");
  float* dx = floats(o.dx, tokens, hidden, "dx");
  float* dweight = gradient_floats(o.dweight, out, hidden, "dweight");
  execute(rope_of(o));
  product_backward({.dy = dqkv,
                    .x = x,
                    .w = weight,
                    .rows = tokens,
                    .out = out,
                    .in = hidden,
                    .dx = dx,
                    .dw = dweight,
                    .accumulate = o.accumulate_dweight});
  adapters_backward(o.adapters, o.dqkv, o.x, o.dx);
}

void CpuDevice::execute(const op::ProjectionResidual& o) {
  const std::int64_t rows = o.x.rows, in = o.x.cols, out = o.weight.rows;
  const float* x = floats(o.x, rows, in, "x");
  const float* weight = floats(o.weight, out, in, "weight");
  const float* residual = floats(o.residual, rows, out, "residual");
  float* y = floats(o.y, rows, out, "y");
  if (y != residual) {
    parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      std::memcpy(y + begin * out, residual + begin * out,
                  static_cast<std::size_t>((end - begin) * out) * sizeof(float));
    });
  }
  Product product = product_nt(x, weight, y, rows, out, in);
  product.beta = 1;
  gemm_(product);
  add_adapters(o.adapters, o.x, o.y);
}

void CpuDevice::execute(const op::ProjectionBackward& o) {
  const std::int64_t rows = o.x.rows, in = o.x.cols, out = o.weight.rows;
  const float* dy = floats(o.dy, rows, out, "dy");
  const float* x = floats(o.x, rows, in, "x");
  const float* weight = floats(o.weight, out, in, "weight");
  float* dx = floats(o.dx, rows, in, "dx");
  float* dweight = gradient_floats(o.dweight, out, in, "dweight");
  product_backward({.dy = dy,
                    .x = x,
                    .w = weight,
                    .rows = rows,
                    .out = out,
                    .in = in,
                    .dx = dx,
                    .dw = dweight,
                    .accumulate = o.accumulate_dweight});
  adapters_backward(o.adapters, o.dy, o.x, o.dx);
}

void CpuDevice::execute(const op::GateUpSwiglu& o) {
  const std::int64_t rows = o.x.rows, hidden = o.x.cols, width = o.weight.rows / 2;
  const float* x = floats(o.x, rows, hidden, "x");
  const float* weight = floats(o.weight, 2 * width, hidden, "weight");
  float* gate_up = floats(o.gate_up, rows, 2 * width, "gate_up");
  gemm_(product_nt(x, weight, gate_up, rows, 2 * width, hidden));
  add_adapters(o.adapters, o.x, o.gate_up);
  execute(op::Swiglu{.gate_up = o.gate_up, .activated = o.activated});
}

void CpuDevice::execute(const op::Swiglu& o) {
  const std::int64_t rows = o.activated.rows, width = o.activated.cols;
  const float* gate_up = floats(o.gate_up, rows, 2 * width, "gate_up");
  float* activated = floats(o.activated, rows, width, "activated");
  parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* gate = gate_up + t * 2 * width;
      kernels_.swiglu(width, gate, gate + width, activated + t * width);
    }
  });
  measure(o.activated, o.maximum);
}

CpuDevice::Rows CpuDevice::swiglu_gradient_rows(const Tensor& dactivated, const Tensor& gate_up) const {
  const std::int64_t rows = dactivated.rows, width = dactivated.cols;
  return {rows, 2 * width,
          [=, this, gradient = floats(dactivated, rows, width, "dactivated"),
           from = floats(gate_up, rows, 2 * width, "gate_up")](std::int64_t t, float* to) {
            std::copy_n(from + t * 2 * width, 2 * width, to);
            kernels_.swiglu_backward(width, gradient + t * width, to, to + width);
          }};
}

void CpuDevice::execute(const op::SwigluBackward& o) {
  if (!o.writes) return measure_rows(swiglu_gradient_rows(o.dactivated, o.gate_up), o.maximum);
  const std::int64_t rows = o.dactivated.rows, width = o.dactivated.cols;
  const float* dactivated = floats(o.dactivated, rows, width, "dactivated");
  float* gate_up = floats(o.gate_up, rows, 2 * width, "gate_up");
  parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* gate = gate_up + t * 2 * width;
      kernels_.swiglu_backward(width, dactivated + t * width, gate, gate + width);
    }
  });
  measure(o.gate_up, o.maximum);
}

void CpuDevice::execute(const op::GateUpSwigluBackward& o) {
  const std::int64_t rows = o.x.rows, hidden = o.x.cols, width = o.weight.rows / 2;
  require(o.dactivated.rows == rows && o.dactivated.cols == width, "dactivated is [T, F]");
  const float* x = floats(o.x, rows, hidden, "x");
  const float* weight = floats(o.weight, 2 * width, hidden, "weight");
  float* gate_up = floats(o.gate_up, rows, 2 * width, "gate_up");
  float* dx = floats(o.dx, rows, hidden, "dx");
  float* dweight = gradient_floats(o.dweight, 2 * width, hidden, "dweight");
  execute(op::SwigluBackward{.dactivated = o.dactivated, .gate_up = o.gate_up});
  product_backward({.dy = gate_up,
                    .x = x,
                    .w = weight,
                    .rows = rows,
                    .out = 2 * width,
                    .in = hidden,
                    .dx = dx,
                    .dw = dweight,
                    .accumulate = o.accumulate_dweight});
  adapters_backward(o.adapters, o.gate_up, o.x, o.dx);
}

void CpuDevice::execute(const op::Linear& o) {
  const std::int64_t rows = o.x.rows, in = o.x.cols, out = o.weight.rows;
  gemm_(product_nt(floats(o.x, rows, in, "x"), floats(o.weight, out, in, "weight"),
                   floats(o.y, rows, out, "y"), rows, out, in));
}

}  // namespace llampi::device
