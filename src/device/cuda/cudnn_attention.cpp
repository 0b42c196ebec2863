// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cudnn_attention.hpp"

#ifndef LLAMPI_CUDNN

namespace llampi::device::cuda {
std::unique_ptr<CudnnAttention> make_cudnn_attention(bool) { return nullptr; }
std::unique_ptr<CudnnAttention> make_cudnn_attention(bool, int, const std::string&) { return nullptr; }
}  // namespace llampi::device::cuda

#else

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "device/cuda/cudnn_graphs.hpp"
#include "device/cuda/ragged.hpp"

namespace llampi::device::cuda {
namespace {

constexpr std::size_t kOldestVersion = 91200;  // writes statistics with the strides they are declared with
// Backward, sequences that do not fill their last tile: NaN until 9.15.1 (NVIDIA/cudnn-frontend issue 160).
// Newer frontends help older versions with a padding mask, which their replay in a CUDA graph reads too late.
constexpr std::size_t kOldestForAnyLength = 91501;
// Packed documents on Hopper: the backward direction reads workspace that nobody wrote until 9.18 (issue 2186
// of NVIDIA/TransformerEngine), with later repairs in 9.19.
constexpr std::size_t kOldestForDocuments = 91900;
constexpr int kOldestGpuForDocuments = 90;  // compute capability: before Hopper no ragged statistics backward
constexpr std::int64_t kTile = 128;         // rows of a query tile of cuDNN's kernels
constexpr std::int64_t kMostPadding = 16;   // rows of tiles per token: beyond it the own kernels waste less

using cuda::check;
void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) throw Error(fmt::format("{}: {}", what, cudnnGetErrorString(status)));
}

struct HandleRelease {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, HandleRelease>;

/// Places in the workspace, in multiples of 256 bytes.
class Carving {
 public:
  explicit Carving(void* base) : base_(reinterpret_cast<std::uintptr_t>(base)), next_(base_) {}
  template <class T>
  T* take(std::int64_t elements) {
    T* const place = reinterpret_cast<T*>(next_);
    next_ +=
        static_cast<std::uintptr_t>(divide_up(elements * static_cast<std::int64_t>(sizeof(T)), 256) * 256);
    return place;
  }
  std::int64_t bytes() const { return static_cast<std::int64_t>(next_ - base_); }

 private:
  std::uintptr_t base_, next_;
};

enum Table { kQueryTable, kKeyTable, kOutTable, kStatisticsTable };
static_assert(kStatisticsTable < RaggedTables::kOffsets);

struct Scratch {
  RaggedTables tables;
  float* statistics = nullptr;  ///< null: log_sum_exp itself
  std::byte *key = nullptr, *value = nullptr, *key_gradient = nullptr, *value_gradient = nullptr;
  std::byte* graph = nullptr;
  std::int64_t bytes = 0;  ///< of all
};

/// @param base null: only the size is asked for
Scratch carve(const CudnnProblem& problem, const CudnnGraph& graph, void* base) {
  Carving carving(base);
  Scratch scratch;
  const bool backward = problem.direction == Direction::backward;
  if (problem.ragged) {
    scratch.tables.lengths = carving.take<std::int32_t>(problem.batch);
    const std::int64_t widths[] = {problem.qkv_row, problem.key_row(), problem.out_row,
                                   problem.query_heads};
    for (int i = 0; i < RaggedTables::kOffsets; ++i) {
      scratch.tables.offsets[i] = carving.take<std::int64_t>(problem.batch + 1);
      scratch.tables.widths[i] = widths[i];
    }
  }
  if (problem.ragged || (backward && problem.batch > 1))
    scratch.statistics = carving.take<float>(problem.query_heads * problem.tokens);
  if (problem.packs_keys()) {
    const std::int64_t bytes = problem.tokens * problem.key_row() * size_of(problem.dtype);
    for (std::byte** place : {&scratch.key, &scratch.value, &scratch.key_gradient, &scratch.value_gradient})
      *place = carving.take<std::byte>(bytes);
  }
  scratch.graph = carving.take<std::byte>(graph.workspace_bytes());
  scratch.bytes = carving.bytes();
  return scratch;
}

/// The order in which the graph has them; see cudnn_graphs.hpp.
RowStatistics statistics_of(const CudnnProblem& problem, float* data) {
  const std::int64_t heads = problem.query_heads, length = problem.longest;
  if (problem.ragged) return {data, 1, length * heads, heads};
  return {data, length, heads * length, 1};
}
RowStatistics log_sum_exp_of(const CudnnProblem& problem, float* data) {
  return {data, problem.tokens, problem.longest, 1};
}

/// op::Attention or op::AttentionBackward.
template <class Operands>
CudnnProblem problem_of(const Operands& o) {
  const std::int64_t tokens = o.qkv.rows, documents = o.documents.count;
  CudnnProblem problem;
  problem.direction = std::is_same_v<Operands, op::Attention> ? Direction::forward : Direction::backward;
  problem.tokens = tokens;
  problem.longest = std::min(o.documents.max_seqlen, tokens);
  // Else no document can be shorter than the longest.
  problem.ragged = documents * problem.longest != tokens;
  problem.batch = problem.ragged
                      ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(documents)))
                      : documents;
  problem.query_heads = o.shape.query_heads;
  problem.key_value_heads = o.shape.key_value_heads;
  problem.head_dim = o.shape.head_dim;
  problem.qkv_row = o.shape.qkv_cols();
  problem.out_row = o.shape.query_cols();
  problem.dtype = o.qkv.dtype;
  return problem;
}

std::byte* column(const Tensor& rows, std::int64_t elements) {
  return static_cast<std::byte*>(rows.data) + elements * size_of(rows.dtype);
}

CudnnOperands operands_of(const CudnnProblem& problem, const Scratch& scratch) {
  if (!problem.ragged) return {};
  const RaggedTables& tables = scratch.tables;
  return {{kQueryLengths, tables.lengths},
          {kKeyLengths, tables.lengths},
          {kQueryOffsets, tables.offsets[kQueryTable]},
          {kKeyOffsets, tables.offsets[kKeyTable]},
          {kValueOffsets, tables.offsets[kKeyTable]},
          {kOutOffsets, tables.offsets[kOutTable]},
          {kStatisticsOffsets, tables.offsets[kStatisticsTable]}};
}

/// 90 for 9.0; of the current device.
int compute_capability() {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  return major * 10 + minor;
}

/// What cuDNN says, of which there may be pages, on one line.
std::string shortened(std::string text) {
  constexpr std::size_t kMost = 400;
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > kMost) text = text.substr(0, kMost) + " ...";
  return text;
}

enum class Copy : bool { out_of_rows, into_rows };

/// Key/value heads between columns of qkv or dqkv, from `column` on, and rows of their own.
void copy_heads(const CudnnProblem& problem, Copy copy, std::byte* column, std::byte* packed,
                cudaStream_t stream) {
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements * size_of(problem.dtype));
  };
  const std::size_t row = bytes(problem.qkv_row), width = bytes(problem.key_row());
  const auto tokens = static_cast<std::size_t>(problem.tokens);
  const bool out = copy == Copy::out_of_rows;
  check(cudaMemcpy2DAsync(out ? packed : column, out ? width : row, out ? column : packed, out ? row : width,
                          width, tokens, cudaMemcpyDeviceToDevice, stream),
        "cudaMemcpy2DAsync");
}

class GraphAttention final : public CudnnAttention {
 public:
  explicit GraphAttention(bool deterministic) : deterministic_(deterministic) {}
  GraphAttention(bool deterministic, CudnnGpu absent)
      : deterministic_(deterministic), gpu_(std::move(absent)) {}

  bool supports(const op::Attention& o) override { return supports_operands(o); }
  bool supports(const op::AttentionBackward& o) override { return supports_operands(o); }

  void run(const op::Attention& o, cudaStream_t stream) override {
    const auto& [documents, shape, qkv, out, log_sum_exp, workspace] = o;
    const CudnnProblem problem = problem_of(o);
    const CudnnGraph& graph = graph_to_run(problem, workspace);
    const Scratch scratch = carve(problem, graph, workspace.data);
    auto* const saved =
        elements_of<float>(log_sum_exp, DType::float32, shape.query_heads, problem.tokens, "log_sum_exp");
    elements_of(qkv, problem.dtype, problem.tokens, shape.qkv_cols(), "qkv");

    fill_tables(documents, problem, scratch, stream);
    CudnnOperands operands = operands_of(problem, scratch);
    operands[kQuery] = qkv.data;
    operands[kKey] = column(qkv, shape.query_cols());
    operands[kValue] = column(qkv, shape.query_cols() + shape.key_value_cols());
    operands[kOut] = elements_of(out, problem.dtype, problem.tokens, shape.query_cols(), "out");
    operands[kStatistics] = problem.ragged ? scratch.statistics : saved;
    execute(graph, operands, scratch, stream);
    if (problem.ragged) {
      copy_statistics(statistics_of(problem, scratch.statistics), log_sum_exp_of(problem, saved),
                      shape.query_heads, problem.tokens, problem.longest, stream);
    }
  }

  void run(const op::AttentionBackward& o, cudaStream_t stream) override {
    const auto& [documents, shape, dout, qkv, out, log_sum_exp, dqkv, workspace] = o;
    const CudnnProblem problem = problem_of(o);
    const CudnnGraph& graph = graph_to_run(problem, workspace);
    const Scratch scratch = carve(problem, graph, workspace.data);
    auto* const saved =
        elements_of<float>(log_sum_exp, DType::float32, shape.query_heads, problem.tokens, "log_sum_exp");
    elements_of(qkv, problem.dtype, problem.tokens, shape.qkv_cols(), "qkv");
    elements_of(dqkv, problem.dtype, problem.tokens, shape.qkv_cols(), "dqkv");
    const std::int64_t key = shape.query_cols(), value = shape.query_cols() + shape.key_value_cols();

    fill_tables(documents, problem, scratch, stream);
    if (scratch.statistics != nullptr) {
      copy_statistics(log_sum_exp_of(problem, saved), statistics_of(problem, scratch.statistics),
                      shape.query_heads, problem.tokens, problem.longest, stream);
    }
    const bool packs = problem.packs_keys();
    if (packs) {
      copy_heads(problem, Copy::out_of_rows, column(qkv, key), scratch.key, stream);
      copy_heads(problem, Copy::out_of_rows, column(qkv, value), scratch.value, stream);
    }
    CudnnOperands operands = operands_of(problem, scratch);
    operands[kQuery] = qkv.data;
    operands[kKey] = packs ? scratch.key : column(qkv, key);
    operands[kValue] = packs ? scratch.value : column(qkv, value);
    operands[kOut] = elements_of(out, problem.dtype, problem.tokens, shape.query_cols(), "out");
    operands[kOutGradient] = elements_of(dout, problem.dtype, problem.tokens, shape.query_cols(), "dout");
    operands[kStatistics] = scratch.statistics != nullptr ? scratch.statistics : saved;
    operands[kQueryGradient] = dqkv.data;
    operands[kKeyGradient] = packs ? scratch.key_gradient : column(dqkv, key);
    operands[kValueGradient] = packs ? scratch.value_gradient : column(dqkv, value);
    execute(graph, operands, scratch, stream);
    if (packs) {
      copy_heads(problem, Copy::into_rows, column(dqkv, key), scratch.key_gradient, stream);
      copy_heads(problem, Copy::into_rows, column(dqkv, value), scratch.value_gradient, stream);
    }
  }

  std::string describe() const override {
    const std::size_t version = cudnnGetVersion();
    const std::string name =
        fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    return reason_.empty() ? name : fmt::format("{} (not for all: {})", name, reason_);
  }

 private:
  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }
  bool refuse(const CudnnProblem& problem, const std::string& reason) {
    const char* const direction = problem.direction == Direction::forward ? "forward" : "backward";
    return refuse(fmt::format("{}: {}", direction, reason));
  }

  /// Makes the handle at the first call.
  bool open() {
    if (opened_) return handle_ != nullptr || !gpu_.properties.empty();
    opened_ = true;
    if (cudnnGetVersion() < kOldestVersion) return refuse("it is older than 9.12");
    if (!gpu_.properties.empty()) return true;
    gpu_.compute_capability = compute_capability();
    cudnnHandle_t handle = nullptr;
    if (const cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS)
      return refuse(fmt::format("cudnnCreate: {}", cudnnGetErrorString(status)));
    handle_.reset(handle);
    gpu_.handle = handle;
    return true;
  }

  bool is_suitable(const CudnnProblem& problem) {
    if (problem.dtype != DType::bfloat16 && problem.dtype != DType::float16)
      return refuse(problem, fmt::format("{} is not its dtype", to_string(problem.dtype)));
    if (problem.longest < 2) return refuse(problem, "documents of one token");
    if (problem.batch * divide_up(problem.longest, kTile) * kTile > kMostPadding * problem.tokens)
      return refuse(problem, "the documents are too short beside the longest that is possible");
    if (problem.tokens * problem.qkv_row > std::numeric_limits<std::int32_t>::max())
      return refuse(problem, "too many tokens at once");  // not every kernel of it counts elements in 64 bits
    const std::size_t version = cudnnGetVersion();
    if (problem.ragged && (gpu_.compute_capability < kOldestGpuForDocuments || version < kOldestForDocuments))
      return refuse(problem, "packed documents need compute capability 9.0 or newer and cuDNN 9.19 or newer");
    const bool whole_tiles = problem.ragged || problem.longest % kTile == 0;
    if (problem.direction == Direction::backward && !whole_tiles && version < kOldestForAnyLength)
      return refuse(problem,
                    fmt::format("sequences that are no multiple of {} tokens need cuDNN 9.15.1", kTile));
    return true;
  }

  template <class Operands>
  bool supports_operands(const Operands& o) {
    if (o.qkv.rows < 1 || o.documents.max_seqlen < 1 || o.documents.count < 1) return false;
    if (!open()) return false;
    const CudnnProblem problem = problem_of(o);
    const std::int64_t workspace_bytes = o.workspace.bytes();
    if (!is_suitable(problem)) return false;
    const std::optional<CudnnGraph>& graph = graph_of(problem, workspace_bytes);
    if (!graph) return false;
    const std::int64_t needed = carve(problem, *graph, nullptr).bytes;
    return needed <= workspace_bytes ||
           refuse(problem,
                  fmt::format("it needs a workspace of {} bytes, which has {}", needed, workspace_bytes));
  }

  /// Empty where cuDNN does not support it.
  const std::optional<CudnnGraph>& graph_of(const CudnnProblem& problem, std::int64_t workspace_bytes) {
    const auto [entry, is_new] = graphs_.try_emplace(problem);
    if (!is_new) return entry->second;
    try {  // what is not supported is an answer here, and the frontend has exceptions for it too
      entry->second.emplace(gpu_, problem, deterministic_, workspace_bytes);
    } catch (const std::exception& error) {
      refuse(problem, shortened(error.what()));
    }
    return entry->second;
  }

  const CudnnGraph& graph_to_run(const CudnnProblem& problem, const Tensor& workspace) const {
    const auto found = graphs_.find(problem);
    const bool ready = found != graphs_.end() && found->second &&
                       carve(problem, *found->second, nullptr).bytes <= workspace.bytes();
    if (!ready)
      throw Error("internal error: attention by cuDNN that it does not support, or in too little memory");
    return *found->second;
  }

  static void fill_tables(const Documents& documents, const CudnnProblem& problem, const Scratch& scratch,
                          cudaStream_t stream) {
    if (!problem.ragged) return;
    const auto* const offsets =
        elements_of<std::int32_t>(documents.cu_seqlens, DType::int32, 1, problem.tokens + 1, "cu_seqlens");
    fill_ragged_tables(offsets, documents.count, problem.batch, scratch.tables, stream);
  }

  void execute(const CudnnGraph& graph, CudnnOperands& operands, const Scratch& scratch,
               cudaStream_t stream) {
    check(cudnnSetStream(handle_.get(), stream), "cudnnSetStream");
    graph.execute(handle_.get(), operands, scratch.graph);
  }

  bool deterministic_;
  bool opened_ = false;
  std::string reason_;  ///< of the last refusal
  Handle handle_;
  CudnnGpu gpu_;
  std::map<CudnnProblem, std::optional<CudnnGraph>> graphs_;  ///< released before the handle
};

}  // namespace

std::unique_ptr<CudnnAttention> make_cudnn_attention(bool deterministic) {
  return std::make_unique<GraphAttention>(deterministic);
}

std::unique_ptr<CudnnAttention> make_cudnn_attention(bool deterministic, int compute_capability,
                                                     const std::string& properties) {
  require(!properties.empty(), "a GPU without properties");
  return std::make_unique<GraphAttention>(deterministic, CudnnGpu{compute_capability, nullptr, properties});
}

}  // namespace llampi::device::cuda

#endif
