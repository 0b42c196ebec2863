// SPDX-License-Identifier: Apache-2.0
// Operations over rows, without matrix products: embedding, RMSNorm, add, copy, zero.
#include <cstring>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"
#include "device/recomputation_checks.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kCacheLine = 16;  // float32
constexpr std::int64_t kPage = 1024;     // float32

const std::int32_t* checked_ids(const Tensor& tokens, std::int64_t vocabulary) {
  const std::int32_t* ids = integers(tokens, tokens.cols, "tokens");
  for (std::int64_t t = 0; t < tokens.cols; ++t) {
    require(ids[t] >= 0 && ids[t] < vocabulary, "token outside of the vocabulary");
  }
  return ids;
}

}  // namespace

void CpuDevice::execute(const op::Embedding& o) {
  const std::int64_t hidden = o.table.cols;
  const std::int32_t* tokens = checked_ids(o.tokens, o.table.rows);
  const float* table = floats(o.table, o.table.rows, hidden, "table");
  float* x = floats(o.x, o.tokens.cols, hidden, "x");
  parallel_ranges(threads_, o.x.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::memcpy(x + t * hidden, table + tokens[t] * hidden,
                  static_cast<std::size_t>(hidden) * sizeof(float));
    }
  });
}

// Each thread has its own columns, so that a row of the table is summed in order of t.
void CpuDevice::execute(const op::EmbeddingBackward& o) {
  if (!o.dtable) return;
  const std::int64_t hidden = o.dtable.cols;
  const std::int32_t* tokens = checked_ids(o.tokens, o.dtable.rows);
  const float* dx = floats(o.dx, o.tokens.cols, hidden, "dx");
  float* dtable = floats(o.dtable, o.dtable.rows, hidden, "dtable");
  if (o.accumulate_dtable == Accumulate::no) zero_in_parallel(dtable, o.dtable.elements());
  parallel_ranges(threads_, hidden, kCacheLine, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = 0; t < o.dx.rows; ++t) {
      kernels_.add(end - begin, dx + t * hidden + begin, dtable + tokens[t] * hidden + begin);
    }
  });
}

void CpuDevice::execute(const op::RmsNorm& o) {
  const std::int64_t rows = o.x.rows, hidden = o.x.cols;
  const float* x = floats(o.x, rows, hidden, "x");
  const float* weight = floats(o.weight, 1, hidden, "weight");
  float* inverse_rms = floats(o.inverse_rms, 1, rows, "inverse_rms");
  if (!o.y) {
    const auto norm_row = [=, this, eps = o.eps](std::int64_t t, float* to) {
      inverse_rms[t] = kernels_.rms_norm(hidden, x + t * hidden, weight, eps, to);
    };
    return measure_rows({rows, hidden, norm_row}, o.maximum);
  }
  float* y = floats(o.y, rows, hidden, "y");
  parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      inverse_rms[t] = kernels_.rms_norm(hidden, x + t * hidden, weight, o.eps, y + t * hidden);
    }
  });
  measure(o.y, o.maximum);
}

// Each thread sums dweight over its rows in float64; the sums are combined in order of the rows.
void CpuDevice::execute(const op::RmsNormBackward& o) {
  const std::int64_t rows = o.x.rows, hidden = o.x.cols;
  const float* x = floats(o.x, rows, hidden, "x");
  const float* dy = floats(o.dy, rows, hidden, "dy");
  const float* weight = floats(o.weight, 1, hidden, "weight");
  const float* inverse_rms = floats(o.inverse_rms, 1, rows, "inverse_rms");
  float* dx = floats(o.dx, rows, hidden, "dx");
  check_recomputation(o);
  float* y = o.y ? floats(o.y, rows, hidden, "y") : nullptr;
  float* dweight = gradient_floats(o.dweight, 1, hidden, "dweight");
  const std::int64_t bytes = sizes_.rms_norm_backward_workspace(rows, hidden, DType::float32);
  double* partial = static_cast<double*>(workspace_of(o.workspace, bytes));
  if (dweight != nullptr) std::memset(partial, 0, static_cast<std::size_t>(bytes));
  parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int part) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels_.rms_norm_backward(hidden, {.dy = dy + t * hidden,
                                          .x = x + t * hidden,
                                          .weight = weight,
                                          .inverse_rms = inverse_rms[t],
                                          .add_dx = o.accumulate_dx == Accumulate::yes,
                                          .dx = dx + t * hidden,
                                          .dweight = dweight == nullptr ? nullptr : partial + part * hidden,
                                          .y = y == nullptr ? nullptr : y + t * hidden});
    }
  });
  measure(o.dx, o.maximum);
  if (dweight == nullptr) return;
  for (std::int64_t i = 0; i < hidden; ++i) {
    double sum = o.accumulate_dweight == Accumulate::yes ? static_cast<double>(dweight[i]) : 0.0;
    for (int part = 0; part < threads_; ++part) sum += partial[part * hidden + i];
    dweight[i] = static_cast<float>(sum);
  }
}

void CpuDevice::execute(const op::Add& o) {
  const float* from = floats(o.source, o.source.rows, o.source.cols, "source");
  float* to = floats(o.destination, o.source.rows, o.source.cols, "destination");
  parallel_ranges(threads_, o.source.elements(), kPage, [&](std::int64_t begin, std::int64_t end, int) {
    kernels_.add(end - begin, from + begin, to + begin);
  });
}

void CpuDevice::execute(const op::Copy& o) {
  require(o.source.dtype == o.destination.dtype && o.source.elements() == o.destination.elements(),
          "copy of unlike tensors");
  const auto* from = static_cast<const std::byte*>(o.source.data);
  auto* to = static_cast<std::byte*>(o.destination.data);
  parallel_ranges(threads_, o.source.bytes(), kPage * 4, [&](std::int64_t begin, std::int64_t end, int) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

void CpuDevice::execute(const op::Zero& o) {
  auto* to = static_cast<std::byte*>(o.destination.data);
  parallel_ranges(threads_, o.destination.bytes(), kPage * 4, [&](std::int64_t begin, std::int64_t end, int) {
    std::memset(to + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

void CpuDevice::zero_in_parallel(float* data, std::int64_t elements) const {
  parallel_ranges(threads_, elements, kPage, [&](std::int64_t begin, std::int64_t end, int) {
    std::memset(data + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

}  // namespace llampi::device
