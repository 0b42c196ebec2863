// SPDX-License-Identifier: Apache-2.0
// The head with its loss: chunks of the tokens that have labels, so that the logits of one chunk are all that is ever in memory.
#include <algorithm>
#include <vector>

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
      if (labels[t] >= 0) rows.push_back(t);
    }
    if (std::ssize(rows) == tokens) return;
    chunk = std::max<std::int64_t>(1, chunk * vocabulary / (vocabulary + hidden));
    packed = logits + chunk * vocabulary;
  }

  /// Else rows are where they are: if all tokens have a label, or one row is computed at a time.
  bool packs() const { return packed != nullptr && chunk > 1; }
  std::int64_t offset_of(std::int64_t row) const { return rows[static_cast<std::size_t>(row)] * hidden; }
  std::int32_t label_of(std::int64_t row) const { return labels[rows[static_cast<std::size_t>(row)]]; }

  std::int64_t tokens, hidden, vocabulary, chunk;
  const float *x, *weight;
  const std::int32_t* labels;
  std::vector<std::int64_t> rows;  ///< tokens that have a label, the only ones that are computed
  double* losses;                  ///< of a chunk of rows
  float* logits;                   ///< [chunk, vocabulary]
  float* packed = nullptr;         ///< [chunk, hidden]: x of a chunk of rows, then its gradients
};

/// x of `count` rows, side by side.
const float* rows_of_x(const HeadOperands& head, int threads, std::int64_t begin, std::int64_t count) {
  if (!head.packs()) return head.x + head.offset_of(begin);
  parallel_ranges(threads, count, 1, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t i = first; i < last; ++i)
      std::copy_n(head.x + head.offset_of(begin + i), head.hidden, head.packed + i * head.hidden);
  });
  return head.packed;
}

/// In order of t.
double sum(double start, const double* losses, std::int64_t rows) {
  for (std::int64_t i = 0; i < rows; ++i) start += losses[i];
  return start;
}

}  // namespace

void CpuDevice::execute(const op::LinearCrossEntropy& o) {
  const HeadOperands head(o, sizes_);
  for (std::int64_t begin = 0; begin < std::ssize(head.rows); begin += head.chunk) {
    const std::int64_t rows = std::min(head.chunk, std::ssize(head.rows) - begin);
    gemm_(product_nt(rows_of_x(head, threads_, begin, rows), head.weight, head.logits, rows, head.vocabulary,
                     head.hidden));
    parallel_items(threads_, rows, [&](std::int64_t i, int) {
      head.losses[i] = kernels_.cross_entropy(head.vocabulary, head.logits + i * head.vocabulary,
                                              head.label_of(begin + i));
    });
    *o.loss_sum = sum(*o.loss_sum, head.losses, rows);
    progress();
  }
}

void CpuDevice::execute(const op::LinearCrossEntropyBackward& o) {
  const HeadOperands head(o, sizes_);
  float* dx = floats(o.dx, head.tokens, head.hidden, "dx");
  float* dweight = gradient_floats(o.dweight, head.vocabulary, head.hidden, "dweight");
  if (std::ssize(head.rows) < head.tokens) std::fill_n(dx, head.tokens * head.hidden, 0.0F);
  if (head.rows.empty() && dweight != nullptr && o.accumulate_dweight == Accumulate::no)
    std::fill_n(dweight, head.vocabulary * head.hidden, 0.0F);
  for (std::int64_t begin = 0; begin < std::ssize(head.rows); begin += head.chunk) {
    const std::int64_t rows = std::min(head.chunk, std::ssize(head.rows) - begin);
    const float* x_rows = rows_of_x(head, threads_, begin, rows);
    gemm_(product_nt(x_rows, head.weight, head.logits, rows, head.vocabulary, head.hidden));
    parallel_items(threads_, rows, [&](std::int64_t i, int) {
      head.losses[i] = kernels_.cross_entropy_backward(head.vocabulary, head.logits + i * head.vocabulary,
                                                       head.label_of(begin + i), *o.inverse_tokens);
    });
    *o.loss_sum = sum(*o.loss_sum, head.losses, rows);
    if (dweight != nullptr) {
      Product of_weight = product_tn(head.logits, x_rows, dweight, head.vocabulary, head.hidden, rows);
      of_weight.beta = beta(begin == 0 ? o.accumulate_dweight : Accumulate::yes);
      gemm_(of_weight);
    }
    float* const dx_rows = head.packs() ? head.packed : dx + head.offset_of(begin);
    gemm_(product_nn(head.logits, head.weight, dx_rows, rows, head.hidden, head.vocabulary));
    if (head.packs()) {
      for (std::int64_t i = 0; i < rows; ++i)
        std::copy_n(dx_rows + i * head.hidden, head.hidden, dx + head.offset_of(begin + i));
    }
    progress();
  }
}

}  // namespace llampi::device
