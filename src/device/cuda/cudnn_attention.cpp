// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cudnn_attention.hpp"

#ifndef LLAMPI_CUDNN

namespace llampi::device::cuda {
std::unique_ptr<CudnnAttention> make_cudnn_attention(bool) { return nullptr; }
std::unique_ptr<CudnnAttention> make_cudnn_attention(bool, int, const std::string&) { return nullptr; }
}  // namespace llampi::device::cuda

#else

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/cuda/cudnn_division.hpp"
#include "device/cuda/cudnn_graphs.hpp"
#include "device/cuda/cudnn_scratch.hpp"
#include "device/cuda/ragged.hpp"
#include "llampi/core/elements.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::device::cuda {
namespace {

constexpr std::size_t kOldestVersion = 91200;  // writes statistics with the strides they are declared with
// Backward, sequences that do not fill their last tile: NaN until 9.15.1 (NVIDIA/cudnn-frontend issue 160).
// Newer frontends help older versions with a padding mask, which their replay in a CUDA graph reads too late.
constexpr std::size_t kOldestForAnyLength = 91501;
// Packed documents on Hopper: the backward direction reads workspace that nobody wrote until 9.18 (issue 2186
// of NVIDIA/TransformerEngine), with later repairs in 9.19.
constexpr std::size_t kOldestForDocuments = 91900;
constexpr std::int64_t kTile = 128;  // rows of a query tile of cuDNN's kernels

/// Packed documents backward: GPUs of compute capability 8.x and 12.x cannot read packed statistics (cudnn-frontend,
/// scaled_dot_product_flash_attention.h).
constexpr bool takes_documents(int major) { return major >= 9 && major != 12; }

using cuda::check;
void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) throw Error(fmt::format("{}: {}", what, cudnnGetErrorString(status)));
}

struct HandleRelease {
  void operator()(cudnnHandle_t handle) const { cudnnDestroy(handle); }
};
using Handle = std::unique_ptr<std::remove_pointer_t<cudnnHandle_t>, HandleRelease>;

const char* to_string(Direction direction) {
  return direction == Direction::forward ? "forward" : "backward";
}
using llampi::to_string;

/// Columns of rows of qkv, out or their gradients, from a token on.
std::byte* at(const Tensor& rows, std::int64_t token, std::int64_t column) {
  return static_cast<std::byte*>(rows.data) + (token * rows.cols + column) * size_of(rows.dtype);
}

/// The tables of a launch of packed documents.
CudnnOperands tables_of(const RaggedTables& tables, std::int64_t launch) {
  const std::int64_t first_entry = launch * tables.row();
  return {{kQueryLengths, tables.lengths + first_entry},
          {kKeyLengths, tables.lengths + first_entry},
          {kQueryOffsets, tables.offsets[kQueryTable] + first_entry},
          {kKeyOffsets, tables.offsets[kKeyTable] + first_entry},
          {kValueOffsets, tables.offsets[kKeyTable] + first_entry},
          {kOutOffsets, tables.offsets[kOutTable] + first_entry},
          {kStatisticsOffsets, tables.offsets[kStatisticsTable] + first_entry}};
}

/// The order in which a graph has them that does not read log_sum_exp itself; see cudnn_graphs.hpp.
RowStatistics statistics_of(const CudnnProblem& problem, float* data) {
  const std::int64_t heads = problem.query_heads, length = problem.longest;
  if (problem.ragged) return {data, 1, length * heads, heads};
  return {data, length, heads * length, 1};
}
/// log_sum_exp [Hq, T] from this head and token on.
RowStatistics log_sum_exp_of(const CudnnProblem& problem, const Tensor& log_sum_exp, std::int64_t head,
                             std::int64_t token) {
  auto* const data = static_cast<float*>(log_sum_exp.data);
  return {data + head * log_sum_exp.cols + token, log_sum_exp.cols, problem.longest, 1};
}

/// The most that a graph of this part takes, all of which are known.
std::int64_t graph_bytes(const CudnnPart& part) {
  std::int64_t bytes = 0;
  for (const CudnnLaunches& launches : part.launches)
    bytes = std::max(bytes, launches.graph->workspace_bytes());
  return bytes;
}

/// 90 for 9.0; of the current device.
int compute_capability() {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  return major * 10 + minor;
}

/// The first line of what cuDNN says, of which there may be pages.
std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 100;
  const std::string line = text.substr(0, text.find('\n'));
  return line.size() <= kMost ? line : line.substr(0, kMost) + "...";
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

/// The gradients of the documents of a launch, from where it left them into dqkv.
void copy_gradients(const CudnnProblem& problem, const CudnnOperands& operands, const CudnnPiece& piece,
                    const Tensor& dqkv, cudaStream_t stream) {
  const std::int64_t size = size_of(problem.dtype);
  const auto part = [&](CudnnOperand from, std::int64_t from_row, std::int64_t heads, std::int64_t column) {
    return DocumentRows::Part{.from = static_cast<const std::byte*>(operands.at(from)),
                              .to = at(dqkv, 0, column),
                              .from_row = from_row * size,
                              .to_row = problem.qkv_row * size,
                              .bytes = heads * problem.head_dim * size};
  };
  copy_documents(
      {.lengths = static_cast<const std::int32_t*>(operands.at(kQueryLengths)),
       .begins = static_cast<const std::int64_t*>(operands.at(kStatisticsOffsets)),
       .batch = problem.batch,
       .width = problem.query_heads,
       .parts = {part(kQueryGradient, problem.qkv_row, problem.query_heads, piece.query_column),
                 part(kKeyGradient, problem.key_row(), problem.key_value_heads, piece.key_column),
                 part(kValueGradient, problem.key_row(), problem.key_value_heads, piece.value_column)}},
      stream);
}

class GraphAttention final : public CudnnAttention {
 public:
  explicit GraphAttention(bool deterministic) : deterministic_(deterministic) {}
  GraphAttention(bool deterministic, CudnnGpu absent)
      : deterministic_(deterministic), gpu_(std::move(absent)) {}

  bool supports(const op::Attention& o) override { return supports_operands(o); }
  bool supports(const op::AttentionBackward& o) override { return supports_operands(o); }

  void run(const op::Attention& o, cudaStream_t stream) override {
    const std::int64_t tokens = checked_tokens(o);
    const CudnnDivision division = division_to_run(o);
    const CudnnPart& part = division.parts.front();  // which has room for all
    const CudnnProblem& problem = part.problem();
    const CudnnScratch scratch = carve_scratch(part, tokens, graph_bytes(part), o.workspace.data);
    fill_tables(o.documents, part, scratch, stream);
    const auto run_piece = [&](const CudnnLaunches& launches, const CudnnPiece& piece,
                               CudnnOperands operands) {
      operands[kQuery] = at(o.qkv, piece.token, piece.query_column);
      operands[kKey] = at(o.qkv, piece.token, piece.key_column);
      operands[kValue] = at(o.qkv, piece.token, piece.value_column);
      operands[kOut] = at(o.out, piece.token, piece.query_column);
      operands[kStatistics] = scratch.statistics != nullptr ? scratch.statistics : o.log_sum_exp.data;
      execute(launches, operands, scratch, stream);
    };
    for_each_launch(part, o.shape, 0, scratch, run_piece);
    if (scratch.statistics == nullptr) return;
    copy_statistics(statistics_of(problem, scratch.statistics), log_sum_exp_of(problem, o.log_sum_exp, 0, 0),
                    problem.query_heads, tokens, problem.longest, stream);
  }

  void run(const op::AttentionBackward& o, cudaStream_t stream) override {
    const std::int64_t tokens = checked_tokens(o);
    elements_of(o.dout, o.qkv.dtype, tokens, o.shape.query_cols(), "dout");
    elements_of(o.dqkv, o.qkv.dtype, tokens, o.shape.qkv_cols(), "dqkv");
    const CudnnDivision division = division_to_run(o);
    for (const CudnnPart& part : division.parts) {
      if (part.has_launches()) run_part(o, part, stream);
    }
  }

  std::int64_t longest_with_room(const op::AttentionBackward& o) const override {
    const CudnnDivision division = division_of(o);
    return division.leaves_documents ? division.longest() : 0;
  }

  std::string describe() const override {
    const std::size_t version = cudnnGetVersion();
    std::string notes;
    if (notes_[0] == notes_[1] && !notes_[0].empty()) {
      notes = "forward and backward " + notes_[0];
    } else {
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        const std::string& note = notes_[static_cast<std::size_t>(direction)];
        if (!note.empty())
          notes += fmt::format("{}{} {}", notes.empty() ? "" : "; ", to_string(direction), note);
      }
    }
    return fmt::format("cuDNN {}.{}.{}{}", version / 10000, version / 100 % 100, version % 100,
                       notes.empty() ? "" : " (" + notes + ")");
  }

 private:
  void run_part(const op::AttentionBackward& o, const CudnnPart& part, cudaStream_t stream) {
    const std::int64_t tokens = o.qkv.rows;
    const CudnnProblem& problem = part.problem();
    const CudnnScratch scratch = carve_scratch(part, tokens, graph_bytes(part), o.workspace.data);
    fill_tables(o.documents, part, scratch, stream);
    const bool packs = problem.packs_keys(), apart = part.apart;
    for (std::int64_t heads = 0; heads < part.head_pieces; ++heads) {
      const std::int64_t first_head = heads * problem.query_heads;
      const auto copy_log_sum_exp = [&](std::int64_t first_token, std::int64_t count) {
        copy_statistics(log_sum_exp_of(problem, o.log_sum_exp, first_head, first_token),
                        statistics_of(problem, scratch.statistics), problem.query_heads, count,
                        problem.longest, stream);
      };
      const CudnnPiece columns = piece_of(problem, o.shape, heads, 0);
      if (packs) {
        copy_log_sum_exp(0, tokens);
        copy_heads(problem, Copy::out_of_rows, at(o.qkv, 0, columns.key_column), scratch.key, stream);
        copy_heads(problem, Copy::out_of_rows, at(o.qkv, 0, columns.value_column), scratch.value, stream);
      }
      const auto run_piece = [&](const CudnnLaunches& launches, const CudnnPiece& piece,
                                 CudnnOperands operands) {
        if (!packs && scratch.statistics != nullptr) copy_log_sum_exp(piece.token, problem.tokens);
        operands[kQuery] = at(o.qkv, piece.token, piece.query_column);
        operands[kKey] = packs ? scratch.key : at(o.qkv, piece.token, piece.key_column);
        operands[kValue] = packs ? scratch.value : at(o.qkv, piece.token, piece.value_column);
        operands[kOut] = at(o.out, piece.token, piece.query_column);
        operands[kOutGradient] = at(o.dout, piece.token, piece.query_column);
        operands[kStatistics] = scratch.statistics != nullptr
                                    ? scratch.statistics
                                    : log_sum_exp_of(problem, o.log_sum_exp, first_head, piece.token).data;
        operands[kQueryGradient] = apart
                                       ? scratch.query_gradient + piece.query_column * size_of(problem.dtype)
                                       : at(o.dqkv, piece.token, piece.query_column);
        operands[kKeyGradient] = packs ? scratch.key_gradient : at(o.dqkv, piece.token, piece.key_column);
        operands[kValueGradient] =
            packs ? scratch.value_gradient : at(o.dqkv, piece.token, piece.value_column);
        execute(launches, operands, scratch, stream);
        if (apart) copy_gradients(launches.problem, operands, piece, o.dqkv, stream);
      };
      for_each_launch(part, o.shape, heads, scratch, run_piece);
      if (packs && !apart) {
        copy_heads(problem, Copy::into_rows, at(o.dqkv, 0, columns.key_column), scratch.key_gradient, stream);
        copy_heads(problem, Copy::into_rows, at(o.dqkv, 0, columns.value_column), scratch.value_gradient,
                   stream);
      }
    }
  }

  bool refuse(Direction direction, const std::string& reason) {
    notes_[static_cast<std::size_t>(direction)] = "by native kernels: " + reason;
    return false;
  }
  void accept(const CudnnDivision& division) {
    const CudnnPart& part = division.parts.back();  // of the longest
    const CudnnProblem& problem = part.problem();
    const std::int64_t pieces = part.head_pieces * (problem.ragged ? 1 : part.launches.front().pieces);
    std::string& note = notes_[static_cast<std::size_t>(problem.direction)];
    note = pieces == 1 ? "" : fmt::format("in {} pieces", pieces);
    if (division.leaves_documents)
      note = fmt::format("of documents of more than {} tokens by native kernels", division.longest());
  }

  /// Makes the handle at the first call. An empty text, or why there is none.
  std::string open() {
    if (opened_) return why_not_;
    opened_ = true;
    if (cudnnGetVersion() < kOldestVersion) return why_not_ = "it is older than 9.12";
    if (!gpu_.properties.empty()) return {};
    gpu_.compute_capability = compute_capability();
    cudnnHandle_t handle = nullptr;
    if (const cudnnStatus_t status = cudnnCreate(&handle); status != CUDNN_STATUS_SUCCESS)
      return why_not_ = fmt::format("cudnnCreate: {}", cudnnGetErrorString(status));
    handle_.reset(handle);
    gpu_.handle = handle;
    return {};
  }

  /// An empty text, or why cuDNN is not asked for this: what an operation is as a whole.
  std::string why_unsuitable(const CudnnProblem& problem) const {
    if (!is_half(problem.dtype)) return fmt::format("{} is not its dtype", to_string(problem.dtype));
    if (problem.longest < 2) return "documents of one token";
    const std::size_t version = cudnnGetVersion();
    if (problem.ragged && (!takes_documents(gpu_.compute_capability / 10) || version < kOldestForDocuments))
      return "packed documents need a GPU of compute capability 9.x or 10.x, and cuDNN 9.19 or newer";
    const bool whole_tiles = problem.ragged || problem.longest % kTile == 0;
    if (problem.direction == Direction::backward && !whole_tiles && version < kOldestForAnyLength)
      return fmt::format("sequences whose length is not a multiple of {} tokens need cuDNN 9.15.1", kTile);
    return {};
  }

  /// Without parts where not even the smallest piece has room for its dP.
  template <class Operands>
  CudnnDivision division_of(const Operands& o) const {
    std::int64_t attention_room = std::numeric_limits<std::int64_t>::max();
    if constexpr (std::is_same_v<Operands, op::AttentionBackward>) {
      if (deterministic_ && deterministic_attention_keeps_dp(gpu_.compute_capability / 10))
        attention_room = o.attention_room;
    }
    return divide_attention(problem_of(o), o.shape, o.documents, attention_room);
  }

  template <class Operands>
  bool supports_operands(const Operands& o) {
    if (o.qkv.rows < 1 || o.documents.max_seqlen < 1 || o.documents.count < 1) return false;
    const CudnnProblem whole = problem_of(o);
    std::string why_not = open();
    if (why_not.empty()) why_not = why_unsuitable(whole);
    if (!why_not.empty()) return refuse(whole.direction, why_not);

    CudnnDivision division = division_of(o);
    if (division.parts.empty())
      return refuse(whole.direction, "run.attention_workspace has no room for deterministic gradients");
    for (CudnnPart& part : division.parts) {
      // Not every kernel of it counts elements in 64 bits.
      if (part.problem().tokens * whole.qkv_row > std::numeric_limits<std::int32_t>::max())
        return refuse(whole.direction, "too many tokens at once");
      for (CudnnLaunches& launches : part.launches) {
        launches.graph = graph_of(launches.problem, o.workspace.bytes(), why_not);
        if (launches.graph == nullptr) return refuse(whole.direction, why_not);
      }
      const std::int64_t needed = carve_scratch(part, whole.tokens, graph_bytes(part), nullptr).bytes;
      if (needed > o.workspace.bytes()) {
        return refuse(whole.direction, fmt::format("it needs a workspace of {} bytes, and has {}", needed,
                                                   o.workspace.bytes()));
      }
    }
    accept(division);
    return true;
  }

  struct KnownGraph {
    std::optional<CudnnGraph> graph;  ///< empty: it is not supported
    std::string why_not;
    std::int64_t workspace_bytes = 0;  ///< with which it was asked for
  };

  /// Null, and `why_not`, where cuDNN has none that needs no more workspace.
  const CudnnGraph* graph_of(const CudnnProblem& problem, std::int64_t workspace_bytes,
                             std::string& why_not) {
    const auto [entry, is_new] = graphs_.try_emplace(problem);
    KnownGraph& known = entry->second;
    if (is_new || (!known.graph && known.workspace_bytes < workspace_bytes)) {
      known.workspace_bytes = workspace_bytes;
      try {  // what is not supported is an answer here, and the frontend has exceptions for it too
        known.graph.emplace(gpu_, problem, deterministic_, workspace_bytes);
      } catch (const std::exception& error) {
        known.why_not = shortened(error.what());
      }
    }
    why_not = known.why_not;
    return known.graph ? &*known.graph : nullptr;
  }

  /// What supports() has found. @throws Error if it was not asked, or said no
  template <class Operands>
  CudnnDivision division_to_run(const Operands& o) const {
    CudnnDivision division = division_of(o);
    bool supported = !division.parts.empty();
    for (CudnnPart& part : division.parts) {
      for (CudnnLaunches& launches : part.launches) {
        const auto found = graphs_.find(launches.problem);
        launches.graph = found != graphs_.end() && found->second.graph ? &*found->second.graph : nullptr;
        supported = supported && launches.graph != nullptr;
      }
      supported = supported &&
                  carve_scratch(part, o.qkv.rows, graph_bytes(part), nullptr).bytes <= o.workspace.bytes();
      if (!supported) break;
    }
    if (!supported)
      throw Error("internal error: attention by cuDNN that it does not support, or in too little memory");
    return division;
  }

  /// The number of tokens, after a check of the operands that both directions have.
  template <class Operands>
  static std::int64_t checked_tokens(const Operands& o) {
    const std::int64_t tokens = o.qkv.rows;
    elements_of(o.qkv, o.qkv.dtype, tokens, o.shape.qkv_cols(), "qkv");
    elements_of(o.out, o.qkv.dtype, tokens, o.shape.query_cols(), "out");
    elements_of(o.log_sum_exp, DType::float32, o.shape.query_heads, tokens, "log_sum_exp");
    return tokens;
  }

  /// run_piece(launches, piece, operands) for each launch of a piece of the heads; the operands are the
  /// tables, if there are any.
  template <class RunPiece>
  static void for_each_launch(const CudnnPart& part, AttentionShape shape, std::int64_t heads,
                              const CudnnScratch& scratch, const RunPiece& run_piece) {
    for (std::size_t i = 0; i < part.launches.size(); ++i) {
      const CudnnLaunches& launches = part.launches[i];
      const CudnnProblem& problem = launches.problem;
      for (std::int64_t p = 0; p < launches.pieces; ++p) {
        run_piece(launches, piece_of(problem, shape, heads, p),
                  problem.ragged ? tables_of(scratch.tables[i], p) : CudnnOperands{});
      }
    }
  }

  void execute(const CudnnLaunches& launches, CudnnOperands& operands, const CudnnScratch& scratch,
               cudaStream_t stream) {
    check(cudnnSetStream(handle_.get(), stream), "cudnnSetStream");
    launches.graph->execute(handle_.get(), operands, scratch.graph);
  }

  bool deterministic_;
  bool opened_ = false;
  std::string why_not_;               ///< cuDNN cannot be used at all
  std::array<std::string, 2> notes_;  ///< by Direction: what was decided last, if it is worth a word
  Handle handle_;
  CudnnGpu gpu_;
  std::map<CudnnProblem, KnownGraph> graphs_;  ///< released before the handle
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
