// SPDX-License-Identifier: Apache-2.0
// The head with its loss: chunks of tokens, so that the logits of one chunk are all that is ever in memory.
#include <algorithm>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"

namespace llampi::device {
namespace {

/// The operands that the loss has with and without gradients.
struct HeadOperands {
  template <class Operands>
  HeadOperands(const Operands& o, const CpuSizes& sizes)
      : tokens(o.labels.cols),
        hidden(o.x.cols),
        vocabulary(o.weight.rows),
        chunk(CpuSizes::head_rows(tokens, vocabulary)),
        x(floats(o.x, tokens, hidden, "x")),
        weight(floats(o.weight, vocabulary, hidden, "weight")),
        labels(integers(o.labels, tokens, "labels")) {
    const std::int64_t bytes =
        sizes.linear_cross_entropy_workspace(tokens, vocabulary, DType::float32, o.logits_bytes);
    losses = static_cast<double*>(workspace_of(o.workspace, bytes));
    logits = reinterpret_cast<float*>(losses + chunk);
    for (std::int64_t t = 0; t < tokens; ++t) {
      require(labels[t] >= -1 && labels[t] < vocabulary, "label outside of the vocabulary");
    }
  }

  std::int64_t tokens, hidden, vocabulary, chunk;
  const float *x, *weight;
  const std::int32_t* labels;
  double* losses;  ///< of the rows of a chunk
  float* logits;   ///< [chunk, vocabulary]
};

/// In order of t.
double sum(double start, const double* losses, std::int64_t rows) {
  for (std::int64_t i = 0; i < rows; ++i) start += losses[i];
  return start;
}

}  // namespace

void CpuDevice::execute(const op::LinearCrossEntropy& o) {
  const HeadOperands head(o, sizes_);
  for (std::int64_t begin = 0; begin < head.tokens; begin += head.chunk) {
    const std::int64_t rows = std::min(head.chunk, head.tokens - begin);
    gemm_(product_nt(head.x + begin * head.hidden, head.weight, head.logits, rows, head.vocabulary,
                     head.hidden));
    parallel_items(threads_, rows, [&](std::int64_t i, int) {
      const std::int32_t label = head.labels[begin + i];
      head.losses[i] =
          label < 0 ? 0 : kernels_.cross_entropy(head.vocabulary, head.logits + i * head.vocabulary, label);
    });
    *o.loss_sum = sum(*o.loss_sum, head.losses, rows);
    progress();
  }
}

void CpuDevice::execute(const op::LinearCrossEntropyBackward& o) {
  const HeadOperands head(o, sizes_);
  float* dx = floats(o.dx, head.tokens, head.hidden, "dx");
  float* dweight = gradient_floats(o.dweight, head.vocabulary, head.hidden, "dweight");
  for (std::int64_t begin = 0; begin < head.tokens; begin += head.chunk) {
    const std::int64_t rows = std::min(head.chunk, head.tokens - begin);
    const float* x_rows = head.x + begin * head.hidden;
    gemm_(product_nt(x_rows, head.weight, head.logits, rows, head.vocabulary, head.hidden));
    parallel_items(threads_, rows, [&](std::int64_t i, int) {
      const std::int32_t label = head.labels[begin + i];
      float* row = head.logits + i * head.vocabulary;
      if (label < 0) std::fill(row, row + head.vocabulary, 0.0F);
      head.losses[i] =
          label < 0 ? 0 : kernels_.cross_entropy_backward(head.vocabulary, row, label, *o.inverse_tokens);
    });
    *o.loss_sum = sum(*o.loss_sum, head.losses, rows);
    gemm_(product_nn(head.logits, head.weight, dx + begin * head.hidden, rows, head.hidden, head.vocabulary));
    if (dweight != nullptr) {
      Product of_weight = product_tn(head.logits, x_rows, dweight, head.vocabulary, head.hidden, rows);
      of_weight.beta = beta(begin == 0 ? o.accumulate_dweight : Accumulate::yes);
      gemm_(of_weight);
    }
    progress();
  }
}

}  // namespace llampi::device
