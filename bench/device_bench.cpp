// SPDX-License-Identifier: Apache-2.0
// Time of each operation of the CPU device at the shapes of a training step, and how much of it is not the
// matrix products:
//   bench_device [threads] [A|B]
// A: T 2048, hidden 288, 6 heads, ffn 768, vocabulary 32000, documents of 256, 6 layers.
// B: T 2048, hidden 768, 12 heads, ffn 2048, vocabulary 32000, documents of 512, 12 layers.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "device/cpu/gemm.hpp"
#include "device/cpu/gemm_environment.hpp"
#include "device/cpu/parallel.hpp"
#include "device/cpu/sizes.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/sum_of_squares.hpp"

namespace {

using namespace llampi;
using Index = std::int64_t;

struct Shape {
  Index tokens, hidden, heads, width, vocabulary, document, layers;
  Index head_dim() const { return hidden / heads; }
  llampi::device::AttentionShape attention() const { return {heads, heads, head_dim()}; }
};

/// Seconds on the clock; with one thread those that the process ran, so that other programs on the machine
/// count less.
double now(int threads) {
  timespec time{};
  clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Shortest of some runs: what disturbs them only makes them longer.
double seconds(int threads, const std::function<void()>& work) {
  double best = 1e30, total = 0;
  for (int run = 0; run < 4 || (total < 0.5 && run < 200); ++run) {
    const double start = now(threads);
    work();
    const double time = now(threads) - start;
    best = std::min(best, time);
    total += time;
  }
  return best;
}

class Bench {
 public:
  Bench(const Shape& shape, int threads)
      : s_(shape), threads_(threads), device_(llampi::device::make_cpu_device(threads)), gemm_(threads) {}

  void run() {
    fmt::print("{}\n{:<26}{:>6}{:>10}{:>10}{:>12}{:>10}\n", device_->describe(), "operation", "times", "ms",
               "GFLOP/s", "products ms", "rest");
    layers();
    head();
    update();
    fmt::print(
        "step: {:.1f} ms, {:.0f} tokens/s; matrix products {:.1f} ms; the rest is {:.1f} % of the step\n\n",
        step_ * 1e3, static_cast<double>(s_.tokens) / step_, products_ * 1e3, 100 * (1 - products_ / step_));
  }

 private:
  Tensor random(Index rows, Index cols, double scale = 1) {
    const Tensor t = zeros(rows, cols, DType::float32);
    const RandomStream stream(1, std::to_string(memory_.size()));
    for (Index i = 0; i < t.elements();
         ++i) {  // one of 4096 numbers: drawing millions takes longer than the benchmark
      t.as<float>()[i] = i < 4096 ? static_cast<float>(scale * stream.normal(static_cast<std::uint64_t>(i)))
                                  : t.as<float>()[(i * 31 + i / 4096) % 4096];
    }
    return t;
  }
  Tensor zeros(Index rows, Index cols, DType dtype) {
    memory_.push_back(device_->allocate(rows * cols * size_of(dtype)));
    return {memory_.back().data(), dtype, rows, cols};
  }
  Tensor workspace(Index bytes) { return zeros(1, (bytes + 3) / 4, DType::float32); }
  Tensor counting(Index n, const std::function<Index(Index)>& value) {
    const Tensor t = zeros(1, n, DType::int32);
    for (Index i = 0; i < n; ++i) t.as<std::int32_t>()[i] = static_cast<std::int32_t>(value(i));
    return t;
  }
  Tensor ids(Index factor) {
    return counting(s_.tokens, [&](Index i) { return i * factor % s_.vocabulary; });
  }
  llampi::device::Documents documents() {
    const Index count = s_.tokens / s_.document;
    return {.cu_seqlens = counting(s_.tokens + 1, [&](Index i) { return i <= count ? i * s_.document : -1; }),
            .positions = counting(s_.tokens, [&](Index i) { return i % s_.document; }),
            .count = count,
            .max_seqlen = s_.document};
  }

  /// Measures an operation that a step has `times` of, and its products alone.
  void row(const std::string& name, Index times, double flops, const std::function<void()>& work,
           const std::function<void()>& products = {}) {
    const double all = seconds(threads_, work), product = products ? seconds(threads_, products) : 0;
    step_ += all * static_cast<double>(times);
    products_ += std::min(all, product) * static_cast<double>(times);
    fmt::print("{:<26}{:>6}{:>10.3f}{:>10.1f}{:>12.3f}{:>9.1f}%\n", name, times, all * 1e3,
               flops / all * 1e-9, product * 1e3, 100 * (1 - product / all));
  }

  /// Forward and backward products of a linear map [out, in], in scratch memory.
  void linear_row(const std::string& name, Index in, Index out, const std::function<void()>& forward,
                  const std::function<void()>& backward) {
    const float* x = random(s_.tokens, in).as<float>();
    const float* w = random(out, in).as<float>();
    float* y = random(s_.tokens, out).as<float>();
    float* dx = random(s_.tokens, in).as<float>();
    float* dw = random(out, in).as<float>();
    const double flops = 2.0 * static_cast<double>(s_.tokens * in * out);
    row(name, s_.layers, flops, forward,
        [&] { gemm_(llampi::device::product_nt(x, w, y, s_.tokens, out, in)); });
    row(name + " backward", s_.layers, 2 * flops, backward, [&] {
      gemm_(llampi::device::product_nn(y, w, dx, s_.tokens, in, out));
      gemm_(llampi::device::product_tn(y, x, dw, out, in, s_.tokens));
    });
  }

  void layers() {
    const Index t = s_.tokens, h = s_.hidden, f = s_.width, qkv_cols = s_.attention().qkv_cols();
    const llampi::device::Documents documents = this->documents();
    const Tensor x = random(t, h), y = random(t, h), dx = random(t, h), dy = random(t, h);
    const Tensor norm = random(1, h), dnorm = random(1, h), inverse_rms = random(1, t);
    const Tensor norm_scratch = workspace(device_->sizes().rms_norm_backward_workspace(t, h, DType::float32));
    row("rms_norm", 2 * s_.layers + 1, 0, [&] {
      device_->run(
          device::op::RmsNorm{.x = x, .weight = norm, .eps = 1e-5, .y = y, .inverse_rms = inverse_rms});
    });
    row("rms_norm backward", 2 * s_.layers + 1, 0, [&] {
      device_->run(device::op::RmsNormBackward{.dy = dy,
                                               .x = x,
                                               .weight = norm,
                                               .inverse_rms = inverse_rms,
                                               .dx = dx,
                                               .accumulate_dx = Accumulate::yes,
                                               .dweight = dnorm,
                                               .accumulate_dweight = Accumulate::no,
                                               .workspace = norm_scratch});
    });

    const Tensor rope = random(s_.document, s_.head_dim());
    const Tensor w_qkv = random(qkv_cols, h, 0.05), dw_qkv = random(qkv_cols, h), qkv = random(t, qkv_cols);
    const Tensor dqkv = random(t, qkv_cols);
    linear_row(
        "qkv_rope", h, qkv_cols,
        [&] {
          device_->run(device::op::QkvRope{.positions = documents.positions,
                                           .x = x,
                                           .weight = w_qkv,
                                           .rope = rope,
                                           .shape = s_.attention(),
                                           .qkv = qkv});
        },
        [&] {
          device_->run(device::op::Rope{.positions = documents.positions,
                                        .rope = rope,
                                        .shape = s_.attention(),
                                        .backward = true,
                                        .qkv = dqkv});
          product_backward(dqkv, x, w_qkv, dx, dw_qkv);
        });
    attention(documents, qkv, dqkv);

    const Tensor w_o = random(h, h, 0.05), dw_o = random(h, h);
    linear_row(
        "projection (out)", h, h,
        [&] { device_->run(device::op::ProjectionResidual{.x = x, .weight = w_o, .residual = dx, .y = y}); },
        [&] { product_backward(dy, x, w_o, dx, dw_o); });
    const Tensor w_gu = random(2 * f, h, 0.05), dw_gu = random(2 * f, h), gate_up = random(t, 2 * f),
                 act = random(t, f);
    linear_row(
        "gate_up_swiglu", h, 2 * f,
        [&] {
          device_->run(
              device::op::GateUpSwiglu{.x = x, .weight = w_gu, .gate_up = gate_up, .activated = act});
        },
        [&] {
          device_->run(device::op::SwigluBackward{.dactivated = act, .gate_up = gate_up});
          product_backward(gate_up, x, w_gu, dx, dw_gu);
        });
    const Tensor w_d = random(h, f, 0.05), dw_d = random(h, f), dact = random(t, f);
    linear_row(
        "projection (down)", f, h,
        [&] {
          device_->run(device::op::ProjectionResidual{.x = act, .weight = w_d, .residual = dx, .y = y});
        },
        [&] { product_backward(dy, act, w_d, dact, dw_d); });
  }

  void product_backward(Tensor dy, Tensor x, Tensor weight, Tensor dx, Tensor dweight) {
    device_->run(device::op::InputGradient{.dy = dy, .weight = weight, .dx = dx});
    device_->run(device::op::WeightGradient{
        .dy = dy, .x = x, .dweight = dweight, .accumulate_dweight = Accumulate::no});
  }

  void attention(const llampi::device::Documents& documents, Tensor qkv, Tensor dqkv) {
    const llampi::device::AttentionShape shape = s_.attention();
    const Tensor out = random(s_.tokens, s_.hidden), dout = random(s_.tokens, s_.hidden),
                 sums = random(s_.heads, s_.tokens);
    const Tensor scratch = workspace(
        device_->sizes().attention_backward_workspace(shape, s_.tokens, s_.document, DType::float32, 0));
    const double flops =
        2.0 * static_cast<double>(s_.tokens * s_.document * s_.hidden);  // the causal half of two products
    row(
        "attention", s_.layers, flops,
        [&] {
          device_->run(device::op::Attention{.documents = documents,
                                             .shape = shape,
                                             .qkv = qkv,
                                             .out = out,
                                             .log_sum_exp = sums,
                                             .workspace = scratch});
        },
        [&] { attention_products(qkv, out, scratch, 1); });
    row(
        "attention backward", s_.layers, 2.5 * flops,
        [&] {
          device_->run(device::op::AttentionBackward{.documents = documents,
                                                     .shape = shape,
                                                     .dout = dout,
                                                     .qkv = qkv,
                                                     .out = out,
                                                     .log_sum_exp = sums,
                                                     .dqkv = dqkv,
                                                     .workspace = scratch});
        },
        [&] { attention_products(qkv, dout, scratch, 2); });
  }

  /// The products of attention alone: scores and their use, `passes` times, and with two passes one more of
  /// the second kind.
  void attention_products(Tensor qkv_, Tensor out_, Tensor scratch, int passes) {
    const Index block = llampi::device::CpuSizes::kQueryBlock,
                stride = llampi::device::CpuSizes::score_stride(s_.document), dim = s_.head_dim();
    const Index qkv_stride = qkv_.cols, out_stride = out_.cols;
    llampi::device::parallel_items(threads_, s_.tokens / s_.document * s_.heads, [&](Index item, int thread) {
      const Index begin = item / s_.heads * s_.document, column = item % s_.heads * dim;
      const float* qkv = qkv_.as<float>() + begin * qkv_stride + column;
      float* out = out_.as<float>() + begin * out_stride + column;
      float* p = scratch.as<float>() + thread * llampi::device::CpuSizes::score_elements(s_.document);
      for (Index first = 0; first < s_.document; first += block) {
        const Index rows = std::min(block, s_.document - first), keys = first + rows;
        const llampi::device::Product scores{.transpose_b = true,
                                             .m = rows,
                                             .n = keys,
                                             .k = dim,
                                             .a = qkv + first * qkv_stride,
                                             .stride_a = qkv_stride,
                                             .b = qkv + s_.hidden,
                                             .stride_b = qkv_stride,
                                             .c = p,
                                             .stride_c = stride};
        const llampi::device::Product values{.m = rows,
                                             .n = dim,
                                             .k = keys,
                                             .a = p,
                                             .stride_a = stride,
                                             .b = qkv + 2 * s_.hidden,
                                             .stride_b = qkv_stride,
                                             .c = out + first * out_stride,
                                             .stride_c = out_stride};
        const llampi::device::Product gradients{.transpose_a = true,
                                                .m = keys,
                                                .n = dim,
                                                .k = rows,
                                                .a = p,
                                                .stride_a = stride,
                                                .b = qkv + first * qkv_stride,
                                                .stride_b = qkv_stride,
                                                .c = out,
                                                .stride_c = out_stride};
        for (int pass = 0; pass < passes; ++pass) gemm_.serial(scores);
        gemm_.serial(values);
        for (int pass = 0; passes > 1 && pass < passes; ++pass) gemm_.serial(gradients);
      }
    });
    gemm_.check();
  }

  void head() {
    const Index t = s_.tokens, h = s_.hidden, v = s_.vocabulary;
    const Tensor tokens = ids(7919), labels = ids(104729);
    const Tensor x = random(t, h), dx = random(t, h), table = random(v, h, 0.05), dtable = random(v, h);
    const Tensor scratch = workspace(
        device_->sizes().linear_cross_entropy_workspace(t, v, DType::float32, llampi::device::kLogitsBytes));
    const double inverse_tokens = 1.0 / static_cast<double>(t);
    double loss_sum = 0;
    const Index chunk = llampi::device::CpuSizes::head_rows(t, v);
    float* logits = scratch.as<float>() + 2 * chunk;
    const double flops = 6.0 * static_cast<double>(t * h * v);
    row(
        "linear_cross_entropy backward", 1, flops,
        [&] {
          device_->run(device::op::LinearCrossEntropyBackward{.labels = labels,
                                                              .x = x,
                                                              .weight = table,
                                                              .inverse_tokens = &inverse_tokens,
                                                              .loss_sum = &loss_sum,
                                                              .dx = dx,
                                                              .dweight = dtable,
                                                              .accumulate_dweight = Accumulate::no,
                                                              .workspace = scratch});
        },
        [&] {
          for (Index begin = 0; begin < t; begin += chunk) {
            const Index rows = std::min(chunk, t - begin);
            float* x_rows = x.as<float>() + begin * h;
            gemm_(llampi::device::product_nt(x_rows, table.as<float>(), logits, rows, v, h));
            gemm_(llampi::device::product_nn(logits, table.as<float>(), dx.as<float>() + begin * h, rows, h,
                                             v));
            llampi::device::Product dw =
                llampi::device::product_tn(logits, x_rows, dtable.as<float>(), v, h, rows);
            dw.beta = begin == 0 ? 0.0F : 1.0F;
            gemm_(dw);
          }
        });
    row("embedding", 1, 0,
        [&] { device_->run(device::op::Embedding{.tokens = tokens, .table = table, .x = x}); });
    row("embedding backward", 1, 0, [&] {
      device_->run(device::op::EmbeddingBackward{
          .tokens = tokens, .dx = dx, .dtable = dtable, .accumulate_dtable = Accumulate::yes});
    });
  }

  void update() {
    const Index h = s_.hidden, n = s_.vocabulary * h + s_.layers * (4 * h * h + 3 * h * s_.width);
    const Tensor p = random(1, n), g = random(1, n), m = zeros(1, n, DType::float32),
                 v = zeros(1, n, DType::float32);
    const Tensor maximum = zeros(1, 1, DType::int32),
                 sum = zeros(1, llampi::device::kSumOfSquaresNumbers, DType::int64);
    const std::vector<llampi::device::UpdateRange> ranges{{0, n, 0.1, 1}};
    llampi::device::UpdateScalars scalars;
    scalars.learning_rate = 1e-3;
    row("sum_squares", 1, 0, [&] {
      device_->run(device::op::SumSquares{.gradient = g, .ranges = ranges, .sum = sum, .maximum = maximum});
    });
    row("adamw", 1, 0, [&] {
      device_->run(device::op::AdamW{.gradient = g,
                                     .ranges = ranges,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .eps = 1e-8,
                                     .scalars = &scalars,
                                     .master = p,
                                     .exp_avg = m,
                                     .exp_avg_sq = v,
                                     .shard = p});
    });
    const double drawing = seconds(threads_, [&] {  // at the start of a run only
      device_->run(device::op::RandomNormal{
          .stream = RandomStream(0, "weights"), .first = 0, .standard_deviation = 0.02, .out = p});
    });
    fmt::print("random weights: {:.0f} million a second\n", 1e-6 * static_cast<double>(n) / drawing);
  }

  Shape s_;
  int threads_;
  std::unique_ptr<llampi::device::Device> device_;
  llampi::device::Gemm gemm_;
  std::vector<llampi::device::Memory> memory_;
  double step_ = 0, products_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  llampi::device::prepare_gemm_environment(argv);
  const int threads = argc > 1 ? std::atoi(argv[1]) : omp_get_num_procs();
  const std::string which = argc > 2 ? argv[2] : "AB";
  try {
    if (which.find('A') != std::string::npos) Bench({2048, 288, 6, 768, 32000, 256, 6}, threads).run();
    if (which.find('B') != std::string::npos) Bench({2048, 768, 12, 2048, 32000, 512, 12}, threads).run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
