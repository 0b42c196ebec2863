// SPDX-License-Identifier: Apache-2.0
// What the rows of q, k and v go through after their product: a bias or norms of heads, and RoPE, in one pass.
#include <algorithm>
#include <cstring>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"
#include "device/qkv_checks.hpp"
#include "device/rope_of.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kColumns = 64;  ///< whose sums a thread has at a time

/// What the loops over rows read and write; a pointer is null where there is nothing.
struct QkvPass {
  explicit QkvPass(const op::Rope& o)
      : shape(o.shape),
        tokens(o.positions.cols),
        dim(o.shape.head_dim),
        cols(o.shape.qkv_cols()),
        normed_heads(o.shape.query_heads + o.shape.key_value_heads),
        positions(integers(o.positions, tokens, "positions")),
        rope(floats(o.rope, o.rope.rows, dim, "rope")),
        qkv(floats(o.qkv, tokens, cols, "qkv")) {
    check_qkv_transform(o.transform);
    for (std::int64_t t = 0; t < tokens; ++t)
      require(positions[t] >= 0 && positions[t] < o.rope.rows, "position outside of the RoPE table");
    if (o.transform.bias) bias = floats(o.transform.bias, 1, cols, "bias");
    if (!o.transform.has_norms()) return;
    q_norm = floats(o.transform.q_norm, 1, dim, "q_norm");
    k_norm = floats(o.transform.k_norm, 1, dim, "k_norm");
    product = floats(o.transform.product, tokens, cols, "product");
    inverse_rms = floats(o.transform.inverse_rms, tokens, normed_heads, "inverse_rms");
  }

  bool is_query(std::int64_t head) const { return head < shape.query_heads; }
  const float* norm_of(std::int64_t head) const { return is_query(head) ? q_norm : k_norm; }

  void rotate(const Kernels& kernels, std::int64_t token, float direction) const {
    const float* cosines = rope + positions[token] * dim;
    kernels.rope(normed_heads, dim / 2, cosines, cosines + dim / 2, direction, qkv + token * cols);
  }

  /// The row as it is after rotate(), in `to` instead of in its place.
  void rotated(const Kernels& kernels, std::int64_t token, float direction, float* to) const {
    std::copy_n(qkv + token * cols, cols, to);
    const float* cosines = rope + positions[token] * dim;
    kernels.rope(normed_heads, dim / 2, cosines, cosines + dim / 2, direction, to);
  }

  void forward(const Kernels& kernels, double eps, std::int64_t token) const {
    float* row = qkv + token * cols;
    if (bias != nullptr) kernels.add(cols, bias, row);
    if (q_norm != nullptr) {
      const float* from = product + token * cols;
      for (std::int64_t head = 0; head < normed_heads; ++head) {
        inverse_rms[token * normed_heads + head] =
            kernels.rms_norm(dim, from + head * dim, norm_of(head), eps, row + head * dim);
      }
      std::copy(from + normed_heads * dim, from + cols, row + normed_heads * dim);
    }
    rotate(kernels, token, 1);
  }

  /// @param dq_norm the sum of q_norm's gradient so far; null: it is not needed. @param dk_norm likewise
  void backward(const Kernels& kernels, std::int64_t token, double* dq_norm, double* dk_norm) const {
    rotate(kernels, token, -1);
    if (q_norm == nullptr) return;
    for (std::int64_t head = 0; head < normed_heads; ++head) {
      float* gradient = qkv + token * cols + head * dim;  // the kernel reads each element before it writes it
      kernels.rms_norm_backward(dim, {.dy = gradient,
                                      .x = product + token * cols + head * dim,
                                      .weight = norm_of(head),
                                      .inverse_rms = inverse_rms[token * normed_heads + head],
                                      .add_dx = false,
                                      .dx = gradient,
                                      .dweight = is_query(head) ? dq_norm : dk_norm});
    }
  }

  AttentionShape shape;
  std::int64_t tokens, dim, cols, normed_heads;
  const std::int32_t* positions;
  const float* rope;
  float* qkv;
  const float *bias = nullptr, *q_norm = nullptr, *k_norm = nullptr, *product = nullptr;
  float* inverse_rms = nullptr;
};

void put_sum(double sum, Accumulate accumulate, float& to) {
  if (accumulate == Accumulate::yes) sum += static_cast<double>(to);
  to = static_cast<float>(sum);
}

}  // namespace

// Sums of norms' gradients: each thread over its rows, in float64, combined in order of the rows. Of a bias: each thread
// has columns of its own, and adds their rows in order.
void CpuDevice::execute(const op::Rope& o) {
  const QkvPass pass(o);
  if (!o.writes) {
    require(!o.transform, "a transform of q, k and v that is only measured");
    return measure_rows(
        {pass.tokens, pass.cols,
         [&](std::int64_t t, float* to) { pass.rotated(kernels_, t, o.backward ? -1 : 1, to); }},
        o.maximum);
  }
  if (!o.backward) {
    parallel_ranges(threads_, pass.tokens, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t t = begin; t < end; ++t) pass.forward(kernels_, o.transform.eps, t);
    });
    return measure(o.qkv, o.maximum);
  }

  const std::int64_t dim = pass.dim;
  float* const dq_norm = gradient_floats(o.dtransform.q_norm, 1, dim, "dq_norm");
  float* const dk_norm = gradient_floats(o.dtransform.k_norm, 1, dim, "dk_norm");
  double* partial = nullptr;  // [threads, 2, dim]
  if (dq_norm != nullptr || dk_norm != nullptr) {
    const auto bytes = sizes_.qkv_transform_backward_workspace(o.shape, pass.tokens, DType::float32);
    partial = static_cast<double*>(workspace_of(o.dtransform.workspace, bytes));
    std::memset(partial, 0, static_cast<std::size_t>(bytes));
  }
  parallel_ranges(threads_, pass.tokens, 1, [&](std::int64_t begin, std::int64_t end, int part) {
    double* const dq = dq_norm == nullptr ? nullptr : partial + part * 2 * dim;
    double* const dk = dk_norm == nullptr ? nullptr : partial + part * 2 * dim + dim;
    for (std::int64_t t = begin; t < end; ++t) pass.backward(kernels_, t, dq, dk);
  });
  measure(o.qkv, o.maximum);

  const auto combine = [&](std::int64_t first, Accumulate accumulate, float* to) {
    for (std::int64_t d = 0; to != nullptr && d < dim; ++d) {
      double sum = 0;
      for (int part = 0; part < threads_; ++part) sum += partial[part * 2 * dim + first + d];
      put_sum(sum, accumulate, to[d]);
    }
  };
  combine(0, o.dtransform.accumulate_q_norm, dq_norm);
  combine(dim, o.dtransform.accumulate_k_norm, dk_norm);

  float* const dbias = gradient_floats(o.dtransform.bias, 1, pass.cols, "dbias");
  if (dbias == nullptr) return;
  parallel_ranges(threads_, pass.cols, kColumns, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t first = begin; first < end; first += kColumns) {
      double sums[kColumns] = {};
      const std::int64_t count = std::min(kColumns, end - first);
      for (std::int64_t t = 0; t < pass.tokens; ++t) {
        const float* row = pass.qkv + t * pass.cols + first;
        for (std::int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(row[i]);
      }
      for (std::int64_t i = 0; i < count; ++i)
        put_sum(sums[i], o.dtransform.accumulate_bias, dbias[first + i]);
    }
  });
}

void CpuDevice::execute(const op::RopeBackwardCast& o) {
  const QkvPass pass(rope_of(o));
  cast_rows({pass.tokens, pass.cols, [&](std::int64_t t, float* to) { pass.rotated(kernels_, t, -1, to); }},
            o.cast);
}

}  // namespace llampi::device
