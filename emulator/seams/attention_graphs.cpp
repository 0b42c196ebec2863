// SPDX-License-Identifier: Apache-2.0
// The graphs that src/device/cuda/cudnn_attention.cpp asks cuDNN for, as loops on the emulated GPU: what it
// would compute of the same addresses, strides, tables and workspace. What cuDNN would get wrong without a
// word ends with an Error here. A head of a sequence is computed alike in every graph that has it.
#include "emulator/seams/attention_graphs.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "device/cuda/attention_sizes.hpp"
#include "device/cuda/kernels.cuh"
#include "emulator/streams.hpp"
#include "llampi/core/elements.hpp"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace llampi::emulator {
namespace {

using device::cuda::CudnnOperand;
using device::cuda::CudnnOperands;
using device::cuda::CudnnProblem;
using device::cuda::Direction;

constexpr std::uintptr_t kAlignment = 16;  ///< of operands, as the frontend declares them

std::vector<CudnnProblem> built, launches;

/// A sequence of a launch, in elements from the beginning of each operand.
struct Sequence {
  std::int64_t length = 0, query = 0, key = 0, value = 0, out = 0, statistics = 0;
};

std::vector<float> read_row(const void* data, DType dtype, std::int64_t at, std::int64_t count) {
  std::vector<float> row(static_cast<std::size_t>(count));
  device::cuda::dispatch(dtype, [&](auto tag) {
    const auto* const from = static_cast<const typename decltype(tag)::type*>(data) + at;
    std::transform(from, from + count, row.begin(), [](auto x) { return device::cuda::to_float(x); });
  });
  return row;
}

void write_row(void* data, DType dtype, std::int64_t at, const std::vector<double>& row) {
  device::cuda::dispatch(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::transform(row.begin(), row.end(), static_cast<T*>(data) + at,
                   [](double x) { return device::cuda::from_float<T>(static_cast<float>(x)); });
  });
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

void add(std::vector<double>& sum, double factor, const std::vector<float>& row) {
  for (std::size_t i = 0; i < row.size(); ++i) sum[i] += factor * static_cast<double>(row[i]);
}

/// One launch.
class Attention {
 public:
  Attention(const CudnnProblem& problem, CudnnOperands operands)
      : problem_(problem),
        operands_(std::move(operands)),
        scale_(1 / std::sqrt(static_cast<double>(problem.head_dim))) {}

  void run() {
    for (const auto& [operand, address] : operands_) {
      require(reinterpret_cast<std::uintptr_t>(address) % kAlignment == 0,
              "an operand that does not begin at 16 bytes");
    }
    for (std::int64_t s = 0; s < problem_.batch; ++s) check(sequence_at(s), s);
    if (problem_.ragged && problem_.direction == Direction::backward) spoil_gradients();
    for (std::int64_t s = 0; s < problem_.batch; ++s) {
      const Sequence sequence = sequence_at(s);
      if (sequence.length == 0) continue;
      for (std::int64_t g = 0; g < problem_.key_value_heads; ++g) {
        if (problem_.direction == Direction::forward) {
          forward(sequence, g);
        } else {
          backward(sequence, g);
        }
      }
    }
  }

 private:
  /// Conversions of sums may write all rows, those of documents of other launches too.
  void spoil_gradients() const {
    const auto spoil_rows = [&](CudnnOperand operand, std::int64_t row, std::int64_t heads) {
      const std::vector<double> nan(static_cast<std::size_t>(heads * problem_.head_dim), std::nan(""));
      for (std::int64_t t = 0; t < problem_.tokens; ++t) write_row(at(operand), problem_.dtype, t * row, nan);
    };
    spoil_rows(device::cuda::kQueryGradient, problem_.qkv_row, problem_.query_heads);
    spoil_rows(device::cuda::kKeyGradient, problem_.key_row(), problem_.key_value_heads);
    spoil_rows(device::cuda::kValueGradient, problem_.key_row(), problem_.key_value_heads);
  }

  /// Within its document's place in each operand, and the operand's end.
  void check(const Sequence& sequence, std::int64_t s) const {
    require(sequence.length >= 0 && sequence.length <= problem_.longest,
            "a document longer than the graph's");
    if (!problem_.ragged) return;
    const auto check_rows = [&](CudnnOperand operand, std::int64_t row) {
      const auto* const table = static_cast<const std::int64_t*>(at(operand));
      require(table[s] % row == 0 && table[s] + sequence.length * row <= table[s + 1] &&
                  table[s + 1] <= problem_.tokens * row,
              "documents that overlap, or end beyond the last token");
    };
    check_rows(device::cuda::kQueryOffsets, problem_.qkv_row);
    check_rows(device::cuda::kKeyOffsets, problem_.key_row());
    check_rows(device::cuda::kValueOffsets, problem_.key_row());
    check_rows(device::cuda::kOutOffsets, problem_.out_row);
    check_rows(device::cuda::kStatisticsOffsets, problem_.query_heads);
  }

  using Rows = std::vector<std::vector<float>>;

  void* at(CudnnOperand operand) const {
    const auto found = operands_.find(operand);
    require(found != operands_.end() && found->second != nullptr, "a graph without one of its operands");
    return found->second;
  }

  std::int64_t offset(CudnnOperand operand, std::int64_t s) const {
    const auto* const table = static_cast<const std::int64_t*>(at(operand));
    require(table[s] <= table[s + 1], "offsets that decrease");
    return table[s];
  }

  Sequence sequence_at(std::int64_t s) const {
    if (!problem_.ragged) {
      const std::int64_t token = s * problem_.longest;
      return {problem_.longest,           token * problem_.qkv_row, token * problem_.key_row(),
              token * problem_.key_row(), token * problem_.out_row, 0};
    }
    const std::int64_t length = static_cast<const std::int32_t*>(at(device::cuda::kQueryLengths))[s];
    require(length == static_cast<const std::int32_t*>(at(device::cuda::kKeyLengths))[s],
            "other lengths of keys than of queries");
    return {length,
            offset(device::cuda::kQueryOffsets, s),
            offset(device::cuda::kKeyOffsets, s),
            offset(device::cuda::kValueOffsets, s),
            offset(device::cuda::kOutOffsets, s),
            offset(device::cuda::kStatisticsOffsets, s)};
  }

  /// Of a head, row by row. @param first element of the sequence's first row
  Rows rows(CudnnOperand operand, std::int64_t first, std::int64_t row, std::int64_t head,
            std::int64_t length) const {
    Rows result;
    for (std::int64_t t = 0; t < length; ++t) {
      result.push_back(read_row(at(operand), problem_.dtype, first + t * row + head * problem_.head_dim,
                                problem_.head_dim));
    }
    return result;
  }
  void write(CudnnOperand operand, std::int64_t first, std::int64_t row, std::int64_t head,
             const std::vector<std::vector<double>>& values) const {
    for (std::size_t t = 0; t < values.size(); ++t) {
      write_row(at(operand), problem_.dtype,
                first + static_cast<std::int64_t>(t) * row + head * problem_.head_dim, values[t]);
    }
  }

  /// As cudnn_graphs.cpp lays them out.
  float& statistic(const Sequence& sequence, std::int64_t head, std::int64_t t) const {
    auto* const data = static_cast<float*>(at(device::cuda::kStatistics));
    const std::int64_t heads = problem_.query_heads, length = problem_.longest;
    if (problem_.ragged) return data[sequence.statistics + t * heads + head];
    const std::int64_t s = sequence.out / problem_.out_row / length;
    if (problem_.direction == Direction::forward && problem_.batch > 1)
      return data[head * problem_.tokens + s * length + t];
    return data[(s * heads + head) * length + t];
  }

  /// The left bound of the diagonal band.
  std::size_t first_key(std::size_t query) const {
    const auto window = static_cast<std::size_t>(problem_.window);
    return window > 0 && query >= window ? query - window + 1 : 0;
  }
  std::int64_t group() const { return problem_.query_heads / problem_.key_value_heads; }
  std::vector<std::vector<double>> zeros(std::int64_t length) const {
    return {static_cast<std::size_t>(length),
            std::vector<double>(static_cast<std::size_t>(problem_.head_dim))};
  }

  void forward(const Sequence& sequence, std::int64_t g) const {
    const auto length = static_cast<std::size_t>(sequence.length);
    const Rows k = rows(device::cuda::kKey, sequence.key, problem_.key_row(), g, sequence.length);
    const Rows v = rows(device::cuda::kValue, sequence.value, problem_.key_row(), g, sequence.length);
    for (std::int64_t head = g * group(); head < (g + 1) * group(); ++head) {
      const Rows q = rows(device::cuda::kQuery, sequence.query, problem_.qkv_row, head, sequence.length);
      auto out = zeros(sequence.length);
      std::vector<double> scores(length);
      for (std::size_t i = 0; i < length; ++i) {
        const std::size_t first = first_key(i);
        for (std::size_t j = first; j <= i; ++j) scores[j] = scale_ * dot(q[i], k[j]);
        const double largest = *std::max_element(scores.begin() + static_cast<int>(first),
                                                 scores.begin() + static_cast<int>(i) + 1);
        double sum = 0;
        for (std::size_t j = first; j <= i; ++j) sum += std::exp(scores[j] - largest);
        for (std::size_t j = first; j <= i; ++j) add(out[i], std::exp(scores[j] - largest) / sum, v[j]);
        statistic(sequence, head, static_cast<std::int64_t>(i)) = static_cast<float>(largest + std::log(sum));
      }
      write(device::cuda::kOut, sequence.out, problem_.out_row, head, out);
    }
  }

  void backward(const Sequence& sequence, std::int64_t g) const {
    const auto length = static_cast<std::size_t>(sequence.length);
    const Rows k = rows(device::cuda::kKey, sequence.key, problem_.key_row(), g, sequence.length);
    const Rows v = rows(device::cuda::kValue, sequence.value, problem_.key_row(), g, sequence.length);
    auto dk = zeros(sequence.length), dv = zeros(sequence.length);
    for (std::int64_t head = g * group(); head < (g + 1) * group(); ++head) {
      const Rows q = rows(device::cuda::kQuery, sequence.query, problem_.qkv_row, head, sequence.length);
      const Rows out = rows(device::cuda::kOut, sequence.out, problem_.out_row, head, sequence.length);
      const Rows dout =
          rows(device::cuda::kOutGradient, sequence.out, problem_.out_row, head, sequence.length);
      auto dq = zeros(sequence.length);
      for (std::size_t i = 0; i < length; ++i) {
        const double delta = dot(dout[i], out[i]);
        const auto log_sum = static_cast<double>(statistic(sequence, head, static_cast<std::int64_t>(i)));
        for (std::size_t j = first_key(i); j <= i; ++j) {
          const double p = std::exp(scale_ * dot(q[i], k[j]) - log_sum);
          const double ds = scale_ * p * (dot(dout[i], v[j]) - delta);
          add(dv[j], p, dout[i]);
          add(dq[i], ds, k[j]);
          add(dk[j], ds, q[i]);
        }
      }
      write(device::cuda::kQueryGradient, sequence.query, problem_.qkv_row, head, dq);
    }
    write(device::cuda::kKeyGradient, sequence.key, problem_.key_row(), g, dk);
    write(device::cuda::kValueGradient, sequence.value, problem_.key_row(), g, dv);
  }

  CudnnProblem problem_;
  CudnnOperands operands_;
  double scale_;
};

/// As cuDNN 9.19 says for Hopper; see device/cuda/attention_sizes.hpp.
std::int64_t workspace_of(const CudnnProblem& problem, bool deterministic) {
  if (problem.direction == Direction::forward) return 0;
  const std::int64_t heads = problem.query_heads, rest = 1024;
  const std::int64_t by_head = problem.tokens * heads * problem.head_dim;
  if (!deterministic) return 8 * by_head + rest;
  const std::int64_t shared = heads > problem.key_value_heads ? (problem.ragged ? 8 : 4) * by_head : 0;
  return device::cuda::dp_bytes(problem.batch, heads, problem.longest) + shared + rest;
}

void spoil(void* workspace, std::int64_t bytes) {
  constexpr std::int64_t kSpoiled = 1 << 16;  // at each end: all of it would take long
  const auto some = static_cast<std::size_t>(std::min(bytes, kSpoiled));
  std::memset(workspace, 0xFF, some);
  std::memset(static_cast<std::byte*>(workspace) + bytes - some, 0xFF, some);
}

}  // namespace

std::vector<CudnnProblem> take_attention_graphs() { return std::exchange(built, {}); }
std::vector<CudnnProblem> take_attention_launches() { return std::exchange(launches, {}); }

}  // namespace llampi::emulator

// The frontend's class, of which cudnn_graphs.hpp knows the name.
namespace cudnn_frontend::graph {
class Graph {
 public:
  llampi::device::cuda::CudnnProblem problem;
};
}  // namespace cudnn_frontend::graph

namespace llampi::device::cuda {

CudnnGraph::CudnnGraph(const CudnnGpu&, const CudnnProblem& problem, bool deterministic,
                       std::int64_t workspace_bytes)
    : graph_(std::make_shared<cudnn_frontend::graph::Graph>()) {
  require(is_half(problem.dtype), "a dtype that cuDNN has not");
  require(problem.ragged || problem.batch * problem.longest == problem.tokens, "tokens of no sequence");
  graph_->problem = problem;
  emulator::built.push_back(problem);
  workspace_bytes_ = emulator::workspace_of(problem, deterministic);
  if (workspace_bytes_ > workspace_bytes) throw Error("no kernel with so little workspace");
}

void CudnnGraph::execute(cudnnHandle_t handle, CudnnOperands& operands, void* workspace) const {
  require(reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0, "the workspace is not aligned");
  emulator::launches.push_back(graph_->problem);
  emulator::enqueue(handle->stream, [=, problem = graph_->problem, bytes = workspace_bytes_] {
    if (bytes > 0) emulator::spoil(workspace, bytes);
    emulator::Attention(problem, operands).run();
    if (bytes > 0) emulator::spoil(workspace, bytes);  // what is not its own is wrong then
  });
}

}  // namespace llampi::device::cuda

// ---- what else is called of cuDNN ----
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = std::make_unique<cudnnContext>().release();
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  const std::unique_ptr<cudnnContext> owned(handle);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
std::size_t cudnnGetVersion() { return 91900; }
const char* cudnnGetErrorString(cudnnStatus_t) { return "of the emulated GPU"; }
