// SPDX-License-Identifier: Apache-2.0
// The head with its loss: chunks of tokens, so that the logits of one chunk are all that is ever in memory.
#include <algorithm>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"

namespace llampi::device {
namespace {

/// The operands that the loss has with and without gradients.
struct HeadOperands {
  HeadOperands(const Batch& batch, const Tensor& x_, const Tensor& weight_, const Tensor& workspace,
               const CpuSizes& sizes)
      : tokens(batch.tokens.cols),
        hidden(x_.cols),
        vocabulary(weight_.rows),
        chunk(CpuSizes::head_rows(tokens, vocabulary)),
        x(floats(x_, tokens, hidden, "x")),
        weight(floats(weight_, vocabulary, hidden, "weight")),
        labels(integers(batch.labels, tokens, "labels")) {
    const std::int64_t bytes = sizes.head_loss_workspace(tokens, hidden, vocabulary, DType::float32);
    losses = static_cast<double*>(workspace_of(workspace, bytes));
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

void CpuDevice::head_loss(const Batch& batch, Tensor x, Tensor weight, StepScalars* scalars,
                          Tensor workspace) {
  const HeadOperands head(batch, x, weight, workspace, sizes_);
  for (std::int64_t begin = 0; begin < head.tokens; begin += head.chunk) {
    const std::int64_t rows = std::min(head.chunk, head.tokens - begin);
    gemm_(product_nt(head.x + begin * head.hidden, head.weight, head.logits, rows, head.vocabulary,
                     head.hidden));
    parallel_items(threads_, rows, [&](std::int64_t i, int) {
      const std::int32_t label = head.labels[begin + i];
      head.losses[i] =
          label < 0 ? 0 : kernels_.cross_entropy(head.vocabulary, head.logits + i * head.vocabulary, label);
    });
    scalars->loss_sum = sum(scalars->loss_sum, head.losses, rows);
    progress();
  }
}

void CpuDevice::head_loss_backward(const Batch& batch, Tensor x, Tensor weight, StepScalars* scalars,
                                   Tensor dx_, Tensor dweight_, Accumulate accumulate_dweight,
                                   Tensor workspace) {
  const HeadOperands head(batch, x, weight, workspace, sizes_);
  float* dx = floats(dx_, head.tokens, head.hidden, "dx");
  float* dweight = gradient_floats(dweight_, head.vocabulary, head.hidden, "dweight");
  for (std::int64_t begin = 0; begin < head.tokens; begin += head.chunk) {
    const std::int64_t rows = std::min(head.chunk, head.tokens - begin);
    const float* x_rows = head.x + begin * head.hidden;
    gemm_(product_nt(x_rows, head.weight, head.logits, rows, head.vocabulary, head.hidden));
    parallel_items(threads_, rows, [&](std::int64_t i, int) {
      const std::int32_t label = head.labels[begin + i];
      float* row = head.logits + i * head.vocabulary;
      if (label < 0) std::fill(row, row + head.vocabulary, 0.0F);
      head.losses[i] =
          label < 0 ? 0
                    : kernels_.cross_entropy_backward(head.vocabulary, row, label, scalars->inverse_tokens);
    });
    scalars->loss_sum = sum(scalars->loss_sum, head.losses, rows);
    product_backward(head.logits, x_rows, head.weight, rows, head.vocabulary, head.hidden,
                     dx + begin * head.hidden, dweight, begin == 0 ? accumulate_dweight : Accumulate::yes);
    progress();
  }
}

}  // namespace llampi::device
