// SPDX-License-Identifier: Apache-2.0
// Kernels over rows of activations. Compiled once per instruction set (see simd.hpp).
#include "device/cpu/kernels_variant.hpp"
#include "device/cpu/simd.hpp"

namespace llampi::device::LLAMPI_SIMD {
namespace {

void exp_kernel(Index n, const float* x, float* y) {
  for_each_vector(n, [&](Index i, auto part) { store(y + i, exp(load(x + i, part)), part); });
}

void add(Index n, const float* x, float* y) {
  for_each_vector(n, [&](Index i, auto part) { store(y + i, load(y + i, part) + load(x + i, part), part); });
}

void scale(Index n, float factor, float* y) {
  for_each_vector(n, [&](Index i, auto part) { store(y + i, load(y + i, part) * factor, part); });
}

double dot(Index n, const float* a, const float* b) {
  Sum sum;
  for_each_vector(n, [&](Index i, auto part) { sum.add(load(a + i, part) * load(b + i, part)); });
  return sum.total();
}

Floats normed(Floats x, float inverse_rms, Floats weight) { return x * inverse_rms * weight; }

float rms_norm(Index n, const float* x, const float* weight, double eps, float* y) {
  const double mean = dot(n, x, x) / static_cast<double>(n);
  // Not 0 where squares are too large for float32: then a run that diverges would look like one that has come to an end.
  const float inverse_rms =
      mean <= __DBL_MAX__ ? static_cast<float>(1 / __builtin_sqrt(mean + eps)) : __builtin_nanf("");
  for_each_vector(n, [&](Index i, auto part) {
    store(y + i, normed(load(x + i, part), inverse_rms, load(weight + i, part)), part);
  });
  return inverse_rms;
}

/// As in the reference: dx[i] = r dy[i] w[i] - x[i] r^3 sum(dy w x) / n.
void rms_norm_backward(Index n, const RmsNormRow& row) {
  const float *const dy = row.dy, *const x = row.x, *const weight = row.weight;
  const float inverse_rms = row.inverse_rms;
  const bool add_dx = row.add_dx;
  float *const dx = row.dx, *const y = row.y;
  double* const dweight = row.dweight;
  Sum sum;
  for_each_vector(n, [&](Index i, auto part) {
    const Floats product = load(dy + i, part) * load(x + i, part);
    sum.add(product * load(weight + i, part));
    if (dweight != nullptr) add_wide(dweight + i, product * inverse_rms, part);
  });
  const double r = static_cast<double>(inverse_rms);
  const float coefficient = static_cast<float>(-r * r * r * sum.total() / static_cast<double>(n));
  for_each_vector(n, [&](Index i, auto part) {
    const Floats branch = add_dx ? load(dx + i, part) : Floats{};
    const Floats in = load(x + i, part), w = load(weight + i, part);
    const Floats direct = load(dy + i, part) * w * inverse_rms;
    store(dx + i, branch + multiply_add(in, broadcast(coefficient), direct), part);
    if (y != nullptr) store(y + i, normed(in, inverse_rms, w), part);
  });
}

void rope(Index heads, Index half, const float* cosines, const float* sines, float direction, float* row) {
  for (Index head = 0; head < heads; ++head, row += 2 * half) {
    for_each_vector(half, [&](Index j, auto part) {
      const Floats c = load(cosines + j, part);
      const Floats s = load(sines + j, part) * direction;
      const Floats a = load(row + j, part);
      const Floats b = load(row + half + j, part);
      store(row + j, multiply_add(a, c, -(b * s)), part);
      store(row + half + j, multiply_add(b, c, a * s), part);
    });
  }
}

Floats silu_times(Floats gate, Floats up) { return gate / (exp(-gate) + 1.0F) * up; }

void swiglu(Index n, const float* gate, const float* up, float* activated) {
  for_each_vector(n, [&](Index i, auto part) {
    store(activated + i, silu_times(load(gate + i, part), load(up + i, part)), part);
  });
}

/// silu'(g) = s (1 + g (1 - s)) with s = sigmoid(g).
void swiglu_backward(Index n, const float* dactivated, float* gate, float* up, float* activated) {
  for_each_vector(n, [&](Index i, auto part) {
    const Floats g = load(gate + i, part);
    const Floats u = load(up + i, part);
    const Floats d = load(dactivated + i, part);
    const Floats s = 1.0F / (exp(-g) + 1.0F);
    if (activated != nullptr) store(activated + i, silu_times(g, u), part);
    store(gate + i, d * u * s * multiply_add(g, 1.0F - s, broadcast(1.0F)), part);
    store(up + i, d * g * s, part);
  });
}

/// Vectors from `valid` on, up to whole ones: `outside` is where the lanes of the vector at i are not valid.
Ints outside(Index i, Index valid) { return lanes() >= static_cast<std::int32_t>(valid - i); }

void fill_zero(Index begin, Index end, float* row) {
  for (Index i = begin; i < end; i += kWidth) store(row + i, Floats{});
}

Index whole_vectors(Index n) { return (n + kWidth - 1) / kWidth * kWidth; }

void softmax(Index valid, Index total, float* scores, float* log_sum_exp, float* inverse_sum) {
  const Index body = valid / kWidth * kWidth;
  const Index end = whole_vectors(valid);
  const Floats lowest = broadcast(-__builtin_inff());
  if (body < end) store(scores + body, outside(body, valid) ? lowest : load(scores + body));
  Floats top = lowest;
  for (Index i = 0; i < end; i += kWidth) top = maximum(load(scores + i), top);
  const float shift = largest(top);
  Sum sum;
  for (Index i = 0; i < end; i += kWidth) {
    const Floats e = exp(load(scores + i) - shift);
    store(scores + i, e);
    sum.add(e);
  }
  fill_zero(end, whole_vectors(total), scores);
  *log_sum_exp = static_cast<float>(static_cast<double>(shift) + __builtin_log(sum.total()));
  *inverse_sum = static_cast<float>(1 / sum.total());
}

void softmax_backward(Index valid, Index total, float log_sum_exp, float delta, float* p, float* dp) {
  const auto step = [&](Index i) {
    const Floats probability = exp(load(p + i) - log_sum_exp);
    store(p + i, probability);
    store(dp + i, probability * (load(dp + i) - delta));
  };
  const Index body = valid / kWidth * kWidth;
  const Index end = whole_vectors(valid);
  for (Index i = 0; i < body; i += kWidth) step(i);
  if (body < end) {
    step(body);
    store(p + body, outside(body, valid) ? Floats{} : load(p + body));
    store(dp + body, outside(body, valid) ? Floats{} : load(dp + body));
  }
  fill_zero(end, whole_vectors(total), p);
  fill_zero(end, whole_vectors(total), dp);
}

float row_maximum(Index n, const float* x) {
  // Four chains: one alone waits for itself.
  Floats top[4] = {broadcast(x[0]), broadcast(x[0]), broadcast(x[0]), broadcast(x[0])};
  Index i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
    for (int j = 0; j < 4; ++j) top[j] = maximum(load(x + i + j * kWidth), top[j]);
  }
  float result = largest(maximum(maximum(top[0], top[1]), maximum(top[2], top[3])));
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

double cross_entropy(Index n, const float* logits, Index label) {
  const float shift = row_maximum(n, logits);
  Sum sum;
  for_each_vector(n, [&](Index i, auto part) {
    Floats e = exp(load(logits + i, part) - shift);
    if constexpr (!kIsWhole<decltype(part)>) e = outside(0, part.n) ? Floats{} : e;
    sum.add(e);
  });
  return static_cast<double>(shift) - static_cast<double>(logits[label]) + __builtin_log(sum.total());
}

double cross_entropy_backward(Index n, float* logits, Index label, double factor) {
  const float shift = row_maximum(n, logits);
  const double chosen = static_cast<double>(logits[label]);
  Sum sum;
  for_each_vector(n, [&](Index i, auto part) {
    Floats e = exp(load(logits + i, part) - shift);
    if constexpr (!kIsWhole<decltype(part)>) e = outside(0, part.n) ? Floats{} : e;
    store(logits + i, e, part);
    sum.add(e);
  });
  scale(n, static_cast<float>(factor / sum.total()), logits);
  logits[label] -= static_cast<float>(factor);
  return static_cast<double>(shift) - chosen + __builtin_log(sum.total());
}

}  // namespace

void add_row_kernels(Kernels& kernels) {
  kernels.exp = exp_kernel;
  kernels.add = add;
  kernels.scale = scale;
  kernels.dot = dot;
  kernels.rms_norm = rms_norm;
  kernels.rms_norm_backward = rms_norm_backward;
  kernels.rope = rope;
  kernels.swiglu = swiglu;
  kernels.swiglu_backward = swiglu_backward;
  kernels.softmax = softmax;
  kernels.softmax_backward = softmax_backward;
  kernels.cross_entropy = cross_entropy;
  kernels.cross_entropy_backward = cross_entropy_backward;
}

}  // namespace llampi::device::LLAMPI_SIMD
