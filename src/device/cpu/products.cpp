// SPDX-License-Identifier: Apache-2.0
// Operations that are a matrix product and a pass over its rows.
#include <algorithm>
#include <cstring>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"
#include "device/recomputation_checks.hpp"
#include "device/rope_of.hpp"

namespace llampi::device {

void CpuDevice::execute(const op::QkvRope& o) {
  const std::int64_t tokens = o.positions.cols, hidden = o.x.cols, out = o.shape.qkv_cols();
  const float* x = floats(o.x, tokens, hidden, "x");
  const float* weight = floats(o.weight, out, hidden, "weight");
  const Tensor& projected = o.transform.has_norms() ? o.transform.product : o.qkv;
  gemm_(product_nt(x, weight, floats(projected, tokens, out, "qkv"), tokens, out, hidden));
  add_adapters(o.adapters, o.x, projected);
  execute(rope_of(o));
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

void CpuDevice::execute(const op::InputGradient& o) {
  const std::int64_t rows = o.dx.rows, in = o.dx.cols, out = o.weight.rows;
  gemm_(product_nn(floats(o.dy, rows, out, "dy"), floats(o.weight, out, in, "weight"),
                   floats(o.dx, rows, in, "dx"), rows, in, out));
  adapter_input_gradients(o);
}

void CpuDevice::execute(const op::WeightGradient& o) {
  const std::int64_t rows = o.x.rows, in = o.x.cols, out = o.dy.cols;
  if (float* dweight = gradient_floats(o.dweight, out, in, "dweight"); dweight != nullptr) {
    Product product =
        product_tn(floats(o.dy, rows, out, "dy"), floats(o.x, rows, in, "x"), dweight, out, in, rows);
    product.beta = beta(o.accumulate_dweight);
    gemm_(product);
  }
  adapter_weight_gradients(o);
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
            kernels_.swiglu_backward(width, gradient + t * width, to, to + width, nullptr);
          }};
}

void CpuDevice::execute(const op::SwigluBackward& o) {
  check_recomputation(o);
  if (!o.writes) return measure_rows(swiglu_gradient_rows(o.dactivated, o.gate_up), o.maximum);
  const std::int64_t rows = o.dactivated.rows, width = o.dactivated.cols;
  const float* dactivated = floats(o.dactivated, rows, width, "dactivated");
  float* gate_up = floats(o.gate_up, rows, 2 * width, "gate_up");
  float* activated = o.activated ? floats(o.activated, rows, width, "activated") : nullptr;
  parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* gate = gate_up + t * 2 * width;
      kernels_.swiglu_backward(width, dactivated + t * width, gate, gate + width,
                               activated == nullptr ? nullptr : activated + t * width);
    }
  });
  measure(o.gate_up, o.maximum);
}

void CpuDevice::execute(const op::Linear& o) {
  const std::int64_t rows = o.x.rows, in = o.x.cols, out = o.weight.rows;
  gemm_(product_nt(floats(o.x, rows, in, "x"), floats(o.weight, out, in, "weight"),
                   floats(o.y, rows, out, "y"), rows, out, in));
}

}  // namespace llampi::device
