// SPDX-License-Identifier: Apache-2.0
// Every operation as its definition reads, in float64, one loop inside the other. Nothing here is fast.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "device/execute_on.hpp"
#include "device/fp8_checks.hpp"
#include "device/fp8_rows.hpp"
#include "device/host_device.hpp"
#include "device/qkv_checks.hpp"
#include "device/recomputation_checks.hpp"
#include "device/rope_of.hpp"
#include "llampi/core/half.hpp"
#include "llampi/core/int8_blocks.hpp"
#include "llampi/core/philox.hpp"

namespace llampi::device {
namespace {

using Index = std::int64_t;

/// A row-major matrix of float64.
struct Matrix {
  double* data;
  Index rows, cols;
  double& operator()(Index r, Index c) const { return data[r * cols + c]; }
};

Matrix matrix(const Tensor& t, Index rows, Index cols, const char* name) {
  return {elements_of<double>(t, rows, cols, name), rows, cols};
}
Matrix matrix(const Tensor& t, const char* name) { return matrix(t, t.rows, t.cols, name); }
/// All elements as one row.
Matrix flat(const Tensor& t, const char* name) { return matrix(t.slice(0, t.elements()), name); }
/// No data if the weight is frozen.
Matrix weight_gradient(const Tensor& t, Index rows, Index cols, const char* name) {
  return {weight_gradient_of<double>(t, rows, cols, name), rows, cols};
}

/// A gradient read in float64: kept in that, or in what other devices keep it in.
class Gradient {
 public:
  explicit Gradient(const Tensor& t) : t_(t) {
    if (t.dtype == DType::float64 || t.dtype == DType::float32 || t.dtype == DType::bfloat16) return;
    throw Error(
        fmt::format("this device has no kernels for a gradient in {}: it takes float64, float32 or bfloat16",
                    to_string(t.dtype)));
  }
  Index size() const { return t_.elements(); }
  double operator[](Index i) const {
    if (t_.dtype == DType::float64) return static_cast<const double*>(t_.data)[i];
    if (t_.dtype == DType::float32) return static_cast<double>(static_cast<const float*>(t_.data)[i]);
    return static_cast<double>(from_bfloat16(static_cast<const std::uint16_t*>(t_.data)[i]));
  }

 private:
  Tensor t_;
};

const std::int32_t* indices(const Tensor& t, const char* name) {
  return elements_of<std::int32_t>(t, 1, t.cols, name);
}

/// target (+)= value
void put(double& target, double value, Accumulate accumulate) {
  target = accumulate == Accumulate::yes ? target + value : value;
}

/// y = x w^T
void product(Matrix x, Matrix w, Matrix y) {
  for (Index t = 0; t < x.rows; ++t) {
    for (Index o = 0; o < w.rows; ++o) {
      double sum = 0;
      for (Index i = 0; i < x.cols; ++i) sum += x(t, i) * w(o, i);
      y(t, o) = sum;
    }
  }
}

/// dx = dy w, a row at a time: each sum in the order of o
void product_of_gradient(Matrix dy, Matrix w, Matrix dx) {
  for (Index t = 0; t < dx.rows; ++t) {
    std::fill_n(&dx(t, 0), dx.cols, 0.0);
    for (Index o = 0; o < w.rows; ++o) {
      for (Index i = 0; i < dx.cols; ++i) dx(t, i) += dy(t, o) * w(o, i);
    }
  }
}

/// dw (+)= dy^T x, unless dw has no data; a row at a time: each sum in the order of t
void product_of_weight(Matrix dy, Matrix x, Matrix dw, Accumulate accumulate) {
  std::vector<double> sums(static_cast<std::size_t>(x.cols));
  for (Index o = 0; dw.data != nullptr && o < dw.rows; ++o) {
    std::ranges::fill(sums, 0);
    for (Index t = 0; t < x.rows; ++t) {
      for (Index i = 0; i < x.cols; ++i) sums[static_cast<std::size_t>(i)] += dy(t, o) * x(t, i);
    }
    for (Index i = 0; i < x.cols; ++i) put(dw(o, i), sums[static_cast<std::size_t>(i)], accumulate);
  }
}

/// drop(x), as low_rank.hpp has it.
std::vector<double> dropped_of(const Dropout& dropout, Matrix x) {
  std::vector<double> result(x.data, x.data + x.rows * x.cols);
  if (dropout.probability == 0) return result;
  const auto* const words = elements_of<std::int32_t>(dropout.first_sample, 1, 2, "first_sample");
  const auto first_sample = static_cast<Index>(std::uint64_t{static_cast<std::uint32_t>(words[1])} << 32 |
                                               static_cast<std::uint32_t>(words[0]));
  if (first_sample < 0) return result;
  const std::uint32_t threshold = dropout_threshold(dropout.probability);
  const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
  const auto high = [](std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); };
  for (Index t = 0; t < x.rows; ++t) {
    for (Index c = 0; c < x.cols; ++c) {
      const auto index =
          static_cast<std::uint64_t>((first_sample * dropout.seq_len + t) * ((x.cols + 7) / 8) + c / 8);
      const auto block = philox({low(index), high(index), low(dropout.purpose), high(dropout.purpose)},
                                {low(dropout.key), high(dropout.key)});
      const std::uint32_t bits = block[static_cast<std::size_t>(c % 8 / 2)] >> (16 * (c % 2)) & 0xFFFF;
      double& value = result[static_cast<std::size_t>(t * x.cols + c)];
      value = bits < threshold ? 0 : value * dropout_factor(dropout.probability);
    }
  }
  return result;
}

void adapters_down(std::span<const LowRank> adapters, Matrix x) {
  for (const LowRank& l : adapters) {
    const Matrix a = matrix(l.a, l.a.rows, x.cols, "a"), u = matrix(l.u, x.rows, a.rows, "u");
    std::vector<double> input = dropped_of(l.dropout, x);
    product({input.data(), x.rows, x.cols}, a, u);
    for (Index i = 0; i < u.rows * u.cols; ++i) u.data[i] *= l.scale;
  }
}

void add_adapters(std::span<const LowRank> adapters, Matrix x, Matrix y) {
  adapters_down(adapters, x);
  for (const LowRank& l : adapters) {
    const Matrix a = matrix(l.a, l.a.rows, x.cols, "a"), b = matrix(l.b, l.b.rows, a.rows, "b");
    const Matrix u = matrix(l.u, x.rows, a.rows, "u");
    for (Index t = 0; t < x.rows; ++t) {
      for (Index o = 0; o < b.rows; ++o) {
        for (Index j = 0; j < a.rows; ++j) y(t, l.first + o) += u(t, j) * b(o, j);
      }
    }
  }
}

void adapter_input_gradients(std::span<const LowRank> adapters, Matrix dy, Matrix dx) {
  for (const LowRank& l : adapters) {
    const Matrix a = matrix(l.a, l.a.rows, dx.cols, "a"), b = matrix(l.b, l.b.rows, a.rows, "b");
    const Matrix u = matrix(l.u, dx.rows, a.rows, "u"), du = matrix(l.du, dx.rows, a.rows, "du");
    const Matrix db = weight_gradient(l.db, b.rows, b.cols, "db");
    for (Index o = 0; db.data != nullptr && o < b.rows; ++o) {
      for (Index j = 0; j < b.cols; ++j) {
        double sum = 0;
        for (Index t = 0; t < dx.rows; ++t) sum += dy(t, l.first + o) * u(t, j);
        put(db(o, j), sum, l.accumulate_db);
      }
    }
    for (Index t = 0; t < dx.rows; ++t) {
      for (Index j = 0; j < a.rows; ++j) {
        double sum = 0;
        for (Index o = 0; o < b.rows; ++o) sum += dy(t, l.first + o) * b(o, j);
        du(t, j) = l.scale * sum;
      }
    }
    std::vector<double> dinput(static_cast<std::size_t>(dx.rows * dx.cols));
    product_of_gradient(du, a, {dinput.data(), dx.rows, dx.cols});
    dinput = dropped_of(l.dropout, {dinput.data(), dx.rows, dx.cols});
    for (Index i = 0; i < dx.rows * dx.cols; ++i) dx.data[i] += dinput[static_cast<std::size_t>(i)];
  }
}

void adapter_weight_gradients(std::span<const LowRank> adapters, Matrix x) {
  for (const LowRank& l : adapters) {
    std::vector<double> input = dropped_of(l.dropout, x);
    product_of_weight(matrix(l.du, x.rows, l.a.rows, "du"), {input.data(), x.rows, x.cols},
                      weight_gradient(l.da, l.a.rows, x.cols, "da"), l.accumulate_da);
  }
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Rotates the query and key heads of qkv by the angles of the positions, or back (direction -1).
void rotate(const Tensor& positions_of_tokens, Matrix qkv, Matrix rope, AttentionShape shape,
            double direction) {
  const std::int32_t* positions = indices(positions_of_tokens, "positions");
  const Index half = shape.head_dim / 2;
  for (Index t = 0; t < qkv.rows; ++t) {
    for (Index head = 0; head < shape.query_heads + shape.key_value_heads; ++head) {
      for (Index j = 0; j < half; ++j) {
        const double c = rope(positions[t], j);
        const double s = direction * rope(positions[t], half + j);
        double& a = qkv(t, head * shape.head_dim + j);
        double& b = qkv(t, head * shape.head_dim + j + half);
        const double rotated = a * c - b * s;
        b = b * c + a * s;
        a = rotated;
      }
    }
  }
}

/// op::QkvTransform, in place or from its product: `qkv` is what is to be rotated then.
void transform(const op::QkvTransform& o, AttentionShape shape, Matrix qkv) {
  check_qkv_transform(o);
  if (o.bias) {
    const Matrix bias = matrix(o.bias, 1, qkv.cols, "bias");
    for (Index t = 0; t < qkv.rows; ++t) {
      for (Index i = 0; i < qkv.cols; ++i) qkv(t, i) += bias(0, i);
    }
  }
  if (!o.has_norms()) return;
  const Index dim = shape.head_dim, normed = shape.query_heads + shape.key_value_heads;
  const Matrix product = matrix(o.product, qkv.rows, qkv.cols, "product"),
               inverse_rms = matrix(o.inverse_rms, qkv.rows, normed, "inverse_rms");
  for (Index t = 0; t < qkv.rows; ++t) {
    for (Index i = 0; i < qkv.cols; ++i) qkv(t, i) = product(t, i);
    for (Index head = 0; head < normed; ++head) {
      const Matrix weight = matrix(head < shape.query_heads ? o.q_norm : o.k_norm, 1, dim, "norm");
      double squares = 0;
      for (Index d = 0; d < dim; ++d) squares += product(t, head * dim + d) * product(t, head * dim + d);
      inverse_rms(t, head) = 1 / std::sqrt(squares / static_cast<double>(dim) + o.eps);
      for (Index d = 0; d < dim; ++d) qkv(t, head * dim + d) *= inverse_rms(t, head) * weight(0, d);
    }
  }
}

/// dqkv, which has been rotated back, becomes the gradient of the product; see op::RmsNormBackward.
void transform_backward(const op::QkvTransform& o, const op::QkvTransformGradients& gradients,
                        AttentionShape shape, Matrix dqkv) {
  check_qkv_transform(o);
  if (o.bias) {
    const Matrix dbias = weight_gradient(gradients.bias, 1, dqkv.cols, "dbias");
    for (Index i = 0; dbias.data != nullptr && i < dqkv.cols; ++i) {
      double sum = 0;
      for (Index t = 0; t < dqkv.rows; ++t) sum += dqkv(t, i);
      put(dbias(0, i), sum, gradients.accumulate_bias);
    }
  }
  if (!o.has_norms()) return;
  const Index dim = shape.head_dim, normed = shape.query_heads + shape.key_value_heads;
  const Matrix product = matrix(o.product, dqkv.rows, dqkv.cols, "product"),
               inverse_rms = matrix(o.inverse_rms, dqkv.rows, normed, "inverse_rms");
  std::vector<double> dq(static_cast<std::size_t>(dim)), dk(static_cast<std::size_t>(dim));
  for (Index head = 0; head < normed; ++head) {
    const bool is_query = head < shape.query_heads;
    const Matrix weight = matrix(is_query ? o.q_norm : o.k_norm, 1, dim, "norm");
    for (Index t = 0; t < dqkv.rows; ++t) {
      const double r = inverse_rms(t, head);
      const double* x = &product(t, head * dim);
      double* dy = &dqkv(t, head * dim);
      double sum = 0;
      for (Index d = 0; d < dim; ++d) {
        sum += dy[d] * weight(0, d) * x[d];
        (is_query ? dq : dk)[static_cast<std::size_t>(d)] += dy[d] * x[d] * r;
      }
      for (Index d = 0; d < dim; ++d)
        dy[d] = dy[d] * weight(0, d) * r - sum * r * r * r * x[d] / static_cast<double>(dim);
    }
  }
  const Matrix dq_norm = weight_gradient(gradients.q_norm, 1, dim, "dq_norm"),
               dk_norm = weight_gradient(gradients.k_norm, 1, dim, "dk_norm");
  for (Index d = 0; d < dim; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (dq_norm.data != nullptr) put(dq_norm(0, d), dq[i], gradients.accumulate_q_norm);
    if (dk_norm.data != nullptr) put(dk_norm(0, d), dk[i], gradients.accumulate_k_norm);
  }
}

/// Columns of a head in a row of qkv.
struct Heads {
  explicit Heads(AttentionShape shape) : shape_(shape) {}
  Index query(Index head) const { return head * shape_.head_dim; }
  Index key(Index head) const { return shape_.query_cols() + group(head) * shape_.head_dim; }
  Index value(Index head) const { return key(head) + shape_.key_value_cols(); }

 private:
  Index group(Index query_head) const { return query_head / (shape_.query_heads / shape_.key_value_heads); }
  AttentionShape shape_;
};

double dot(const double* a, const double* b, Index n) {
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// It takes scratch memory where it needs some.
class NoSizes final : public OperationSizes {
 public:
  Index attention_workspace(AttentionShape, Index, Index, DType) const override { return 0; }
  Index attention_backward_workspace(AttentionShape, Index, Index, DType, Index) const override { return 0; }
  Index rms_norm_backward_workspace(Index, Index, DType) const override { return 0; }
  Index linear_cross_entropy_workspace(Index, Index, DType, Index) const override { return 0; }
};

class ReferenceDevice final : public HostDevice {
 public:
  std::string describe() const override { return "reference: float64, plain loops, 1 thread"; }

  const OperationSizes& sizes() const override { return sizes_; }
  using HostDevice::execute;

  void execute(const op::Embedding& o) {
    const Matrix table = matrix(o.table, "table"), x = matrix(o.x, o.tokens.cols, table.cols, "x");
    const std::int32_t* tokens = indices(o.tokens, "tokens");
    for (Index t = 0; t < x.rows; ++t) {
      for (Index i = 0; i < x.cols; ++i) x(t, i) = table(tokens[t], i);
    }
  }

  void execute(const op::EmbeddingBackward& o) {
    if (!o.dtable) return;
    const Matrix dtable = matrix(o.dtable, "dtable"), dx = matrix(o.dx, o.tokens.cols, dtable.cols, "dx");
    const std::int32_t* tokens = indices(o.tokens, "tokens");
    if (o.accumulate_dtable == Accumulate::no)
      std::fill(dtable.data, dtable.data + dtable.rows * dtable.cols, 0.0);
    for (Index t = 0; t < dx.rows; ++t) {
      for (Index i = 0; i < dx.cols; ++i) dtable(tokens[t], i) += dx(t, i);
    }
  }

  void execute(const op::RmsNorm& o) {
    const Matrix x = matrix(o.x, "x"), weight = matrix(o.weight, 1, x.cols, "weight");
    std::vector<double> kept;
    const Tensor to = o.y ? o.y : copied(o.x, kept);
    const Matrix y = matrix(to, x.rows, x.cols, "y"),
                 inverse_rms = matrix(o.inverse_rms, 1, x.rows, "inverse_rms");
    for (Index t = 0; t < x.rows; ++t) {
      double squares = 0;
      for (Index i = 0; i < x.cols; ++i) squares += x(t, i) * x(t, i);
      inverse_rms(0, t) = 1 / std::sqrt(squares / static_cast<double>(x.cols) + o.eps);
      for (Index i = 0; i < x.cols; ++i) y(t, i) = x(t, i) * inverse_rms(0, t) * weight(0, i);
    }
    measure(to, o.maximum);
  }

  /// With r = inverse_rms: dr/dx[i] = -r^3 x[i] / H.
  void execute(const op::RmsNormBackward& o) {
    check_recomputation(o);
    const Matrix x = matrix(o.x, "x"), weight = matrix(o.weight, 1, x.cols, "weight");
    const Matrix dy = matrix(o.dy, x.rows, x.cols, "dy"), dx = matrix(o.dx, x.rows, x.cols, "dx");
    const Matrix inverse_rms = matrix(o.inverse_rms, 1, x.rows, "inverse_rms");
    const Matrix dweight = weight_gradient(o.dweight, 1, x.cols, "dweight");
    for (Index t = 0; t < x.rows; ++t) {
      const double r = inverse_rms(0, t);
      double sum = 0;
      for (Index i = 0; i < x.cols; ++i) sum += dy(t, i) * weight(0, i) * x(t, i);
      if (o.y) {
        const Matrix y = matrix(o.y, x.rows, x.cols, "y");
        for (Index i = 0; i < x.cols; ++i) y(t, i) = x(t, i) * r * weight(0, i);
      }
      for (Index i = 0; i < x.cols; ++i) {
        const double gradient =
            dy(t, i) * weight(0, i) * r - sum * r * r * r * x(t, i) / static_cast<double>(x.cols);
        put(dx(t, i), gradient, o.accumulate_dx);
      }
    }
    measure(o.dx, o.maximum);
    if (dweight.data == nullptr) return;
    for (Index i = 0; i < x.cols; ++i) {
      double sum = 0;
      for (Index t = 0; t < x.rows; ++t) sum += dy(t, i) * x(t, i) * inverse_rms(0, t);
      put(dweight(0, i), sum, o.accumulate_dweight);
    }
  }

  void execute(const op::QkvRope& o) {
    const Matrix x = matrix(o.x, o.positions.cols, o.x.cols, "x"),
                 weight = matrix(o.weight, o.shape.qkv_cols(), x.cols, "weight");
    const Matrix qkv = matrix(o.qkv, x.rows, o.shape.qkv_cols(), "qkv");
    const Matrix projected =
        o.transform.has_norms() ? matrix(o.transform.product, qkv.rows, qkv.cols, "product") : qkv;
    product(x, weight, projected);
    add_adapters(o.adapters, x, projected);
    execute(rope_of(o));
  }

  void execute(const op::Attention& o) {
    const Matrix qkv = matrix(o.qkv, o.qkv.rows, o.shape.qkv_cols(), "qkv");
    const Matrix out = matrix(o.out, qkv.rows, o.shape.query_cols(), "out");
    const Matrix log_sum_exp = matrix(o.log_sum_exp, o.shape.query_heads, qkv.rows, "log_sum_exp");
    for_each_query(o.documents, o.shape, [&](Index head, Index first, Index t) {
      std::vector<double> score = scores(qkv, o.shape, head, first, t);
      const double largest = *std::max_element(score.begin(), score.end());
      double sum = 0;
      for (const double s : score) sum += std::exp(s - largest);
      log_sum_exp(head, t) = largest + std::log(sum);
      for (Index d = 0; d < o.shape.head_dim; ++d) {
        double value = 0;
        for (Index key = first; key <= t; ++key) {
          const double probability =
              std::exp(score[static_cast<std::size_t>(key - first)] - log_sum_exp(head, t));
          value += probability * qkv(key, Heads(o.shape).value(head) + d);
        }
        out(t, head * o.shape.head_dim + d) = value;
      }
    });
  }

  void execute(const op::CachedAttention& o) {
    const Index columns = o.shape.key_value_cols(), group = o.shape.query_heads / o.shape.key_value_heads;
    const Matrix qkv = matrix(o.qkv, o.qkv.rows, o.shape.qkv_cols(), "qkv");
    const Matrix cache = matrix(o.kv_cache, o.kv_cache.rows, 2 * columns, "cache");
    const Matrix out = matrix(o.out, qkv.rows, o.shape.query_cols(), "out");
    for (Index t = 0; t < qkv.rows; ++t) {
      for (Index i = 0; i < cache.cols; ++i) cache(o.kv_len + t, i) = qkv(t, o.shape.query_cols() + i);
    }
    for (Index t = 0; t < qkv.rows; ++t) {
      for (Index head = 0; head < o.shape.query_heads; ++head) {
        const Index query = head * o.shape.head_dim, key = head / group * o.shape.head_dim;
        const Index first = o.shape.first_key(o.kv_len + t);
        std::vector<double> score(static_cast<std::size_t>(o.kv_len + t + 1 - first), 0.0);
        for (Index row = first; row <= o.kv_len + t; ++row) {
          double& s = score[static_cast<std::size_t>(row - first)];
          for (Index d = 0; d < o.shape.head_dim; ++d) s += qkv(t, query + d) * cache(row, key + d);
          s /= std::sqrt(static_cast<double>(o.shape.head_dim));
        }
        const double largest = *std::max_element(score.begin(), score.end());
        double sum = 0;
        for (double& s : score) sum += s = std::exp(s - largest);
        for (Index d = 0; d < o.shape.head_dim; ++d) {
          double value = 0;
          for (Index row = first; row <= o.kv_len + t; ++row)
            value += score[static_cast<std::size_t>(row - first)] / sum * cache(row, columns + key + d);
          out(t, query + d) = value;
        }
      }
    }
  }

  void execute(const op::AttentionBackward& o) {
    const Matrix qkv = matrix(o.qkv, o.qkv.rows, o.shape.qkv_cols(), "qkv");
    const Matrix dqkv = matrix(o.dqkv, qkv.rows, qkv.cols, "dqkv");
    const Matrix out = matrix(o.out, qkv.rows, o.shape.query_cols(), "out"),
                 dout = matrix(o.dout, out.rows, out.cols, "dout");
    const Matrix log_sum_exp = matrix(o.log_sum_exp, o.shape.query_heads, qkv.rows, "log_sum_exp");
    const double scale = 1 / std::sqrt(static_cast<double>(o.shape.head_dim));
    const Heads heads(o.shape);
    std::fill(dqkv.data, dqkv.data + dqkv.rows * dqkv.cols, 0.0);
    for_each_query(o.documents, o.shape, [&](Index head, Index first, Index t) {
      const std::vector<double> score = scores(qkv, o.shape, head, first, t);
      const double* gradient = &dout(t, head * o.shape.head_dim);
      const double delta = dot(gradient, &out(t, head * o.shape.head_dim), o.shape.head_dim);
      for (Index key = first; key <= t; ++key) {
        const double probability =
            std::exp(score[static_cast<std::size_t>(key - first)] - log_sum_exp(head, t));
        const double dprobability = dot(gradient, &qkv(key, heads.value(head)), o.shape.head_dim);
        const double dscore = probability * (dprobability - delta) * scale;
        for (Index d = 0; d < o.shape.head_dim; ++d) {
          dqkv(t, heads.query(head) + d) += dscore * qkv(key, heads.key(head) + d);
          dqkv(key, heads.key(head) + d) += dscore * qkv(t, heads.query(head) + d);
          dqkv(key, heads.value(head) + d) += probability * gradient[d];
        }
      }
    });
  }

  void execute(const op::ProjectionResidual& o) {
    const Matrix x = matrix(o.x, "x"), weight = matrix(o.weight, o.weight.rows, x.cols, "weight");
    const Matrix residual = matrix(o.residual, x.rows, weight.rows, "residual"),
                 y = matrix(o.y, x.rows, weight.rows, "y");
    for (Index t = 0; t < x.rows; ++t) {
      for (Index j = 0; j < weight.rows; ++j) y(t, j) = residual(t, j) + dot(&x(t, 0), &weight(j, 0), x.cols);
    }
    add_adapters(o.adapters, x, y);
  }

  void execute(const op::InputGradient& o) {
    const Matrix dx = matrix(o.dx, "dx"), weight = matrix(o.weight, o.weight.rows, dx.cols, "weight");
    const Matrix dy = matrix(o.dy, dx.rows, weight.rows, "dy");
    product_of_gradient(dy, weight, dx);
    adapter_input_gradients(o.adapters, dy, dx);
  }

  void execute(const op::WeightGradient& o) {
    const Matrix x = matrix(o.x, "x"), dy = matrix(o.dy, x.rows, o.dy.cols, "dy");
    product_of_weight(dy, x, weight_gradient(o.dweight, dy.cols, x.cols, "dweight"), o.accumulate_dweight);
    adapter_weight_gradients(o.adapters, x);
  }

  void execute(const op::GateUpSwiglu& o) {
    const Matrix x = matrix(o.x, "x"), weight = matrix(o.weight, o.weight.rows, x.cols, "weight");
    const Matrix gate_up = matrix(o.gate_up, x.rows, weight.rows, "gate_up");
    product(x, weight, gate_up);
    add_adapters(o.adapters, x, gate_up);
    execute(op::Swiglu{.gate_up = o.gate_up, .activated = o.activated});
  }

  void execute(const op::Swiglu& o) {
    const Matrix activated = matrix(o.activated, "activated");
    const Matrix gate_up = matrix(o.gate_up, activated.rows, 2 * activated.cols, "gate_up");
    for (Index t = 0; t < activated.rows; ++t) {
      for (Index f = 0; f < activated.cols; ++f) {
        const double gate = gate_up(t, f), up = gate_up(t, activated.cols + f);
        activated(t, f) = gate * sigmoid(gate) * up;
      }
    }
    measure(o.activated, o.maximum);
  }

  void execute(const op::SwigluBackward& o) {
    check_recomputation(o);
    if (!o.writes) {
      std::vector<double> copy;
      return execute(op::SwigluBackward{
          .dactivated = o.dactivated, .gate_up = copied(o.gate_up, copy), .maximum = o.maximum});
    }
    const Matrix dactivated = matrix(o.dactivated, "dactivated");
    const Matrix gate_up = matrix(o.gate_up, dactivated.rows, 2 * dactivated.cols, "gate_up");
    if (o.activated) execute(op::Swiglu{.gate_up = o.gate_up, .activated = o.activated});
    for (Index t = 0; t < dactivated.rows; ++t) {
      for (Index f = 0; f < dactivated.cols; ++f) {
        double& gate = gate_up(t, f);
        double& up = gate_up(t, dactivated.cols + f);
        const double s = sigmoid(gate), dup = dactivated(t, f) * gate * s;
        gate = dactivated(t, f) * up * (s + gate * s * (1 - s));
        up = dup;
      }
    }
    measure(o.gate_up, o.maximum);
  }

  void execute(const op::LowRankDown& o) { adapters_down(o.adapters, matrix(o.x, "x")); }

  void execute(const op::Rope& o) {
    if (!o.writes) {
      require(!o.transform, "a transform of q, k and v that is only measured");
      std::vector<double> copy;
      op::Rope writing = o;
      writing.qkv = copied(o.qkv, copy);
      writing.writes = true;
      return execute(writing);
    }
    const Matrix qkv = matrix(o.qkv, o.positions.cols, o.shape.qkv_cols(), "qkv");
    if (!o.backward) transform(o.transform, o.shape, qkv);
    rotate(o.positions, qkv, matrix(o.rope, o.rope.rows, o.shape.head_dim, "rope"), o.shape,
           o.backward ? -1 : 1);
    if (o.backward) transform_backward(o.transform, o.dtransform, o.shape, qkv);
    measure(o.qkv, o.maximum);
  }

  void execute(const op::Fp8Maximum& o) {
    std::int32_t& maximum = *elements_of<std::int32_t>(o.maximum, 1, 1, "maximum");
    maximum = std::max(maximum, fp8_maximum_bits(o.source, 0, o.source.elements()));
  }

  void execute(const op::Fp8Scales& o) { fp8_scales(o); }

  void execute(const op::Fp8Cast& o) {
    const int exponent = begin_fp8_cast(o);
    const Index saturated = fp8_cast_rows(o, exponent, o.source, 0);
    if (o.counts != nullptr) o.counts->saturated += saturated;
  }

  void execute(const op::RmsNormCast& o) {
    std::vector<double> copy;
    const Tensor to = copied(o.x, copy);
    const Matrix y = matrix(to, "y"), weight = matrix(o.weight, 1, y.cols, "weight"),
                 inverse_rms = matrix(o.inverse_rms, 1, y.rows, "inverse_rms");
    for (Index t = 0; t < y.rows; ++t) {
      for (Index i = 0; i < y.cols; ++i) y(t, i) = y(t, i) * inverse_rms(0, t) * weight(0, i);
    }
    cast(to, o.cast);
  }

  void execute(const op::SwigluBackwardCast& o) {
    std::vector<double> copy;
    const Tensor to = copied(o.gate_up, copy);
    execute(op::SwigluBackward{.dactivated = o.dactivated, .gate_up = to});
    cast(to, o.cast);
  }

  void execute(const op::RopeBackwardCast& o) {
    std::vector<double> copy;
    op::Rope back = rope_of(o);
    back.qkv = copied(o.qkv, copy);
    execute(back);
    cast(back.qkv, o.cast);
  }

  void execute(const op::Fp8BlockMaximum& o) { fp8_block_maximum(o, 0, fp8_block_rows(o)); }

  void execute(const op::Fp8BlockScales& o) { fp8_block_scales(o); }

  void execute(const op::Fp8BlockCast& o) {
    const Index saturated = fp8_block_cast(o, 0, fp8_block_rows(o));
    if (o.counts == nullptr) return;
    o.counts->saturated += saturated;
    o.counts->zero_scales += is_zero_in_blocks(o) ? 1 : 0;
  }

  void execute(const op::Fp8TileCast& o) {
    check_fp8_tile_cast(o);
    end_fp8_tile_cast(o, fp8_tile_cast(o, 0, o.source.rows / kFp8Block));
  }

  void execute(const op::Fp8Transpose& o) { fp8_transpose_rows(o, 0, o.source.cols); }

  void execute(const op::Fp8Product& o) {
    check_fp8_product(o);
    const auto widened = [](const Tensor& tensor, const Tensor& scale) {
      std::vector<double> values(static_cast<std::size_t>(tensor.elements()));
      fp8_widen(tensor, scale, 0, tensor.rows, values.data());
      return values;
    };
    std::vector<double> a = widened(o.a, o.a_scale), b = widened(o.b, o.b_scale);
    const Matrix y = matrix(o.y, o.a.rows, o.b.rows, "y");
    for (Index r = 0; r < y.rows; ++r) {
      for (Index c = 0; c < y.cols; ++c) {
        double sum = dot(&a[static_cast<std::size_t>(r * o.a.cols)],
                         &b[static_cast<std::size_t>(c * o.a.cols)], o.a.cols);
        if (o.residual) sum += matrix(o.residual, y.rows, y.cols, "residual")(r, c);
        put(y(r, c), sum, o.accumulate_y);
      }
    }
  }

  void execute(const op::LinearCrossEntropy& o) {
    const Matrix x = matrix(o.x, o.labels.cols, o.x.cols, "x"),
                 weight = matrix(o.weight, o.weight.rows, x.cols, "weight");
    const std::int32_t* labels = indices(o.labels, "labels");
    for (Index t = 0; t < x.rows; ++t) {
      if (labels[t] >= 0)
        *o.loss_sum -= std::log(probabilities(x, weight, t)[static_cast<std::size_t>(labels[t])]);
    }
  }

  void execute(const op::LinearCrossEntropyBackward& o) {
    const Matrix x = matrix(o.x, o.labels.cols, o.x.cols, "x"),
                 weight = matrix(o.weight, o.weight.rows, x.cols, "weight");
    const Matrix dx = matrix(o.dx, x.rows, x.cols, "dx"),
                 dweight = weight_gradient(o.dweight, weight.rows, weight.cols, "dweight");
    const std::int32_t* labels = indices(o.labels, "labels");
    if (dweight.data != nullptr && o.accumulate_dweight == Accumulate::no)
      std::fill(dweight.data, dweight.data + dweight.rows * dweight.cols, 0.0);
    std::fill(dx.data, dx.data + dx.rows * dx.cols, 0.0);
    for (Index t = 0; t < x.rows; ++t) {
      if (labels[t] < 0) continue;
      const std::vector<double> probability = probabilities(x, weight, t);
      for (Index v = 0; v < weight.rows; ++v) {
        const double p = probability[static_cast<std::size_t>(v)];
        const double dlogit = (p - (v == labels[t] ? 1 : 0)) * *o.inverse_tokens;
        for (Index i = 0; i < x.cols; ++i) {
          dx(t, i) += dlogit * weight(v, i);
          if (dweight.data != nullptr) dweight(v, i) += dlogit * x(t, i);
        }
      }
    }
    execute(op::LinearCrossEntropy{
        .labels = o.labels, .x = o.x, .weight = o.weight, .loss_sum = o.loss_sum, .workspace = o.workspace});
  }

  void execute(const op::Linear& o) {
    const Matrix x = matrix(o.x, "x"), weight = matrix(o.weight, o.weight.rows, x.cols, "weight");
    product(x, weight, matrix(o.y, x.rows, weight.rows, "y"));
  }

  void execute(const op::Add& o) {
    const Matrix from = matrix(o.source, "source"),
                 to = matrix(o.destination, from.rows, from.cols, "destination");
    for (Index i = 0; i < from.rows * from.cols; ++i) to.data[i] += from.data[i];
  }

  void execute(const op::Copy& o) {
    require(o.source.dtype == o.destination.dtype && o.source.elements() == o.destination.elements(),
            "copy of unlike tensors");
    if (o.source.bytes() > 0)
      std::memcpy(o.destination.data, o.source.data, static_cast<std::size_t>(o.source.bytes()));
  }

  void execute(const op::Cast& o) {
    if (o.source.dtype == DType::int8_blocks) {
      const Matrix to = matrix(o.destination, o.source.rows, o.source.cols, "destination");
      const auto* const blocks = static_cast<const Int8Block*>(o.source.data);
      for (Index i = 0; i < to.rows * to.cols; ++i) {
        const Int8Block& block = blocks[i / kInt8BlockElements];
        to.data[i] = static_cast<double>(block.scale) * block.values[i % kInt8BlockElements];
      }
      return;
    }
    flat(o.source, "source");  // else float64 is all there is
    execute(op::Copy{o.source, o.destination});
  }

  void execute(const op::Zero& o) {
    if (o.destination.bytes() > 0)
      std::memset(o.destination.data, 0, static_cast<std::size_t>(o.destination.bytes()));
  }

  void execute(const op::RandomNormal& o) {
    const Matrix out = flat(o.out, "out");
    for (Index i = 0; i < out.cols; ++i) {
      out.data[i] = o.standard_deviation *
                    o.stream.normal(static_cast<std::uint64_t>(o.first) + static_cast<std::uint64_t>(i));
    }
  }

  /// Gradients in float64 are squared in it.
  void execute(const op::SumSquares& o) {
    const Gradient gradient(o.gradient);
    std::int32_t& maximum = *elements_of<std::int32_t>(o.maximum, 1, 1, "maximum");
    SumOfSquares& sum = sum_of_squares(o.sum);
    check_ranges(o.ranges, gradient.size());
    for (const UpdateRange& range : o.ranges) {
      for (Index i = range.begin; i < range.end; ++i) {
        const std::int32_t bits = magnitude_bits(gradient[i]);
        maximum = std::max(maximum, bits);
        if (bits < SumOfSquares::kInfinity) {
          int exponent = 0;
          const double fraction = std::frexp(gradient[i] * gradient[i], &exponent);
          add(sum, static_cast<std::uint64_t>(std::ldexp(fraction, 53)), exponent - 53);
        } else {
          ++count_of(sum, bits);
        }
      }
    }
  }

  void execute(const op::AdamW& o) {
    const Gradient gradient(o.gradient);
    const Matrix master = flat(o.master, "master"), shard = flat(o.shard, "shard");
    const Matrix exp_avg = flat(o.exp_avg, "exp_avg"), exp_avg_sq = flat(o.exp_avg_sq, "exp_avg_sq");
    check_ranges(o.ranges, gradient.size());
    for (const Matrix& m : {master, exp_avg, exp_avg_sq, shard}) check_ranges(o.ranges, m.cols);
    if (!std::isfinite(o.scalars->grad_norm)) return;
    for (const UpdateRange& range : o.ranges) {
      const double lr = o.scalars->learning_rate * range.learning_rate_factor;
      for (Index i = range.begin; i < range.end; ++i) {
        const double g = gradient[i] * o.scalars->clip_coefficient;
        double& p = master.data[i];
        double& m = exp_avg.data[i];
        double& v = exp_avg_sq.data[i];
        p -= lr * range.weight_decay * p;
        m = o.beta1 * m + (1 - o.beta1) * g;
        v = o.beta2 * v + (1 - o.beta2) * g * g;
        const double root = std::sqrt(v) / std::sqrt(o.scalars->bias_correction2) + o.eps;
        p -= lr / o.scalars->bias_correction1 * m / root;
        shard.data[i] = p;
      }
    }
  }

 protected:
  void issue(const Operation& operation) override {
    execute_on(*this, operation);
    progress();
  }

 private:
  /// op::Fp8Maximum of what an operation has written, if it is to be measured.
  void measure(const Tensor& written, const Tensor& maximum) {
    if (maximum) execute(op::Fp8Maximum{.source = written, .maximum = maximum});
  }

  /// A copy in `memory`.
  static Tensor copied(const Tensor& tensor, std::vector<double>& memory) {
    const Matrix from = matrix(tensor, "tensor");
    memory.assign(from.data, from.data + from.rows * from.cols);
    return {memory.data(), DType::float64, from.rows, from.cols};
  }

  void cast(const Tensor& source, op::Fp8Cast to) {
    require(!to.source, "the cast of what is computed has a source");
    to.source = source;
    execute(to);
  }

  /// body(head, first key that it sees, token) for each query.
  template <class Body>
  static void for_each_query(const Documents& documents, AttentionShape shape, const Body& body) {
    const std::int32_t* offsets = indices(documents.cu_seqlens, "cu_seqlens");
    for (Index document = 0; document < documents.count; ++document) {
      for (Index head = 0; head < shape.query_heads; ++head) {
        for (Index t = offsets[document]; t < offsets[document + 1]; ++t)
          body(head, offsets[document] + shape.first_key(t - offsets[document]), t);
      }
    }
  }

  /// Scaled scores of the query at t with the keys first ... t.
  static std::vector<double> scores(Matrix qkv, AttentionShape shape, Index head, Index first, Index t) {
    const Heads heads(shape);
    std::vector<double> result;
    for (Index key = first; key <= t; ++key) {
      const double product = dot(&qkv(t, heads.query(head)), &qkv(key, heads.key(head)), shape.head_dim);
      result.push_back(product / std::sqrt(static_cast<double>(shape.head_dim)));
    }
    return result;
  }

  /// softmax(x[t] weight^T)
  static std::vector<double> probabilities(Matrix x, Matrix weight, Index t) {
    std::vector<double> result;
    for (Index v = 0; v < weight.rows; ++v) result.push_back(dot(&x(t, 0), &weight(v, 0), x.cols));
    const double largest = *std::max_element(result.begin(), result.end());
    double sum = 0;
    for (double& value : result) sum += value = std::exp(value - largest);
    for (double& value : result) value /= sum;
    return result;
  }

  /// Bits of the smallest float32 that is not below |x|.
  static std::int32_t magnitude_bits(double x) {
    if (std::isnan(x)) return std::bit_cast<std::int32_t>(std::numeric_limits<float>::quiet_NaN());
    float magnitude = static_cast<float>(std::abs(x));
    if (magnitude < std::abs(x))
      magnitude = std::nextafter(magnitude, std::numeric_limits<float>::infinity());
    return std::bit_cast<std::int32_t>(magnitude);
  }

  NoSizes sizes_;
};

}  // namespace

std::unique_ptr<Device> make_reference_device() { return std::make_unique<ReferenceDevice>(); }

}  // namespace llampi::device
