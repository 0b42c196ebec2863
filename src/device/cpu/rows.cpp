// SPDX-License-Identifier: Apache-2.0
// Operations over rows, without matrix products: embedding, RMSNorm, add, copy, zero.
#include <cstring>

#include "device/cpu/cpu_device.hpp"
#include "device/cpu/parallel.hpp"

namespace llampi::device {
namespace {

constexpr std::int64_t kCacheLine = 16;  // float32
constexpr std::int64_t kPage = 1024;     // float32

const std::int32_t* checked_tokens(const Batch& batch, std::int64_t vocabulary) {
  const std::int32_t* tokens = integers(batch.tokens, batch.tokens.cols, "tokens");
  for (std::int64_t t = 0; t < batch.tokens.cols; ++t) {
    require(tokens[t] >= 0 && tokens[t] < vocabulary, "token outside of the vocabulary");
  }
  return tokens;
}

}  // namespace

void CpuDevice::embedding(const Batch& batch, Tensor table_, Tensor x_) {
  const std::int64_t hidden = table_.cols;
  const std::int32_t* tokens = checked_tokens(batch, table_.rows);
  const float* table = floats(table_, table_.rows, hidden, "table");
  float* x = floats(x_, batch.tokens.cols, hidden, "x");
  parallel_ranges(threads_, x_.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::memcpy(x + t * hidden, table + tokens[t] * hidden,
                  static_cast<std::size_t>(hidden) * sizeof(float));
    }
  });
  progress();
}

// Each thread has its own columns, so that a row of the table is summed in order of t.
void CpuDevice::embedding_backward(const Batch& batch, Tensor dx_, Tensor dtable_, Accumulate accumulate) {
  if (!dtable_) return progress();
  const std::int64_t hidden = dtable_.cols;
  const std::int32_t* tokens = checked_tokens(batch, dtable_.rows);
  const float* dx = floats(dx_, batch.tokens.cols, hidden, "dx");
  float* dtable = floats(dtable_, dtable_.rows, hidden, "dtable");
  if (accumulate == Accumulate::no) zero_in_parallel(dtable, dtable_.elements());
  parallel_ranges(threads_, hidden, kCacheLine, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = 0; t < dx_.rows; ++t) {
      kernels_.add(end - begin, dx + t * hidden + begin, dtable + tokens[t] * hidden + begin);
    }
  });
  progress();
}

void CpuDevice::rms_norm(Tensor x_, Tensor weight_, double eps, Tensor y_, Tensor inverse_rms_) {
  const std::int64_t rows = x_.rows, hidden = x_.cols;
  const float* x = floats(x_, rows, hidden, "x");
  const float* weight = floats(weight_, 1, hidden, "weight");
  float* y = floats(y_, rows, hidden, "y");
  float* inverse_rms = floats(inverse_rms_, 1, rows, "inverse_rms");
  parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      inverse_rms[t] = kernels_.rms_norm(hidden, x + t * hidden, weight, eps, y + t * hidden);
    }
  });
  progress();
}

// Each thread sums dweight over its rows in float64; the sums are combined in order of the rows.
void CpuDevice::rms_norm_backward(Tensor dy_, Tensor x_, Tensor weight_, Tensor inverse_rms_, Tensor dx_,
                                  Accumulate accumulate_dx, Tensor dweight_, Accumulate accumulate_dweight,
                                  Tensor workspace) {
  const std::int64_t rows = x_.rows, hidden = x_.cols;
  const float* x = floats(x_, rows, hidden, "x");
  const float* dy = floats(dy_, rows, hidden, "dy");
  const float* weight = floats(weight_, 1, hidden, "weight");
  const float* inverse_rms = floats(inverse_rms_, 1, rows, "inverse_rms");
  float* dx = floats(dx_, rows, hidden, "dx");
  float* dweight = gradient_floats(dweight_, 1, hidden, "dweight");
  const std::int64_t bytes = sizes_.rms_norm_backward_workspace(rows, hidden, DType::float32);
  double* partial = static_cast<double*>(workspace_of(workspace, bytes));
  if (dweight != nullptr) std::memset(partial, 0, static_cast<std::size_t>(bytes));
  parallel_ranges(threads_, rows, 1, [&](std::int64_t begin, std::int64_t end, int part) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels_.rms_norm_backward(hidden, dy + t * hidden, x + t * hidden, weight, inverse_rms[t],
                                 accumulate_dx == Accumulate::yes, dx + t * hidden,
                                 dweight == nullptr ? nullptr : partial + part * hidden);
    }
  });
  if (dweight == nullptr) return progress();
  for (std::int64_t i = 0; i < hidden; ++i) {
    double sum = accumulate_dweight == Accumulate::yes ? static_cast<double>(dweight[i]) : 0.0;
    for (int part = 0; part < threads_; ++part) sum += partial[part * hidden + i];
    dweight[i] = static_cast<float>(sum);
  }
  progress();
}

void CpuDevice::add(Tensor source, Tensor destination) {
  const float* from = floats(source, source.rows, source.cols, "source");
  float* to = floats(destination, source.rows, source.cols, "destination");
  parallel_ranges(threads_, source.elements(), kPage, [&](std::int64_t begin, std::int64_t end, int) {
    kernels_.add(end - begin, from + begin, to + begin);
  });
  progress();
}

void CpuDevice::copy(Tensor source, Tensor destination) {
  require(source.dtype == destination.dtype && source.elements() == destination.elements(),
          "copy of unlike tensors");
  const auto* from = static_cast<const std::byte*>(source.data);
  auto* to = static_cast<std::byte*>(destination.data);
  parallel_ranges(threads_, source.bytes(), kPage * 4, [&](std::int64_t begin, std::int64_t end, int) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
  progress();
}

void CpuDevice::zero(Tensor destination) {
  auto* to = static_cast<std::byte*>(destination.data);
  parallel_ranges(threads_, destination.bytes(), kPage * 4, [&](std::int64_t begin, std::int64_t end, int) {
    std::memset(to + begin, 0, static_cast<std::size_t>(end - begin));
  });
  progress();
}

void CpuDevice::zero_in_parallel(float* data, std::int64_t elements) const {
  parallel_ranges(threads_, elements, kPage, [&](std::int64_t begin, std::int64_t end, int) {
    std::memset(data + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

}  // namespace llampi::device
