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

#include "device/cuda/attention_sizes.hpp"
#include "device/cuda/cudnn_graphs.hpp"
#include "device/cuda/ragged.hpp"
#include "llampi/core/integers.hpp"
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

/// Places in the workspace, in multiples of 256 bytes.
class Carving {
 public:
  explicit Carving(void* base) : base_(reinterpret_cast<std::uintptr_t>(base)), next_(base_) {}
  template <class T>
  T* take(std::int64_t elements) {
    T* const place = reinterpret_cast<T*>(next_);
    next_ += static_cast<std::uintptr_t>(round_up(elements * static_cast<std::int64_t>(sizeof(T)), 256));
    return place;
  }
  std::int64_t bytes() const { return static_cast<std::int64_t>(next_ - base_); }

 private:
  std::uintptr_t base_, next_;
};

const char* to_string(Direction direction) {
  return direction == Direction::forward ? "forward" : "backward";
}
using llampi::to_string;

enum Table { kQueryTable, kKeyTable, kOutTable, kStatisticsTable };
static_assert(kStatisticsTable < RaggedTables::kOffsets);

/// Launches of one graph, for pieces of equal size.
struct Launches {
  CudnnProblem problem;
  std::int64_t pieces = 0;  ///< of the sequences, or of the documents of this class, one after another
  std::int64_t above = 0;   ///< ragged: for documents of more tokens
  const CudnnGraph* graph = nullptr;
};

/// A part of an operation: for each piece of the heads, all of these launches.
struct Part {
  std::vector<Launches> launches;  ///< of one graph; or ragged, for some classes of lengths
  std::int64_t head_pieces = 0;
  /// Documents are launched apart: what one launch leaves in the rows of the documents of others is not
  /// known, so gradients are taken from the rows of its own.
  bool apart = false;

  const CudnnProblem& problem() const { return launches.front().problem; }
  bool has_launches() const {
    return std::ranges::any_of(launches, [](const Launches& l) { return l.pieces > 0; });
  }
};

/// How an operation is done: one part; or of documents, one for the classes of lengths with as many pieces of the heads.
struct Division {
  std::vector<Part> parts;        ///< none: there is no way
  bool leaves_documents = false;  ///< to the native kernels: of classes for which there is no room

  std::int64_t longest() const { return parts.back().launches.back().problem.longest; }
};

struct Scratch {
  std::vector<RaggedTables> tables;  ///< for each of the launches
  float* statistics = nullptr;       ///< of a piece of the heads; null: log_sum_exp itself
  std::byte *key = nullptr, *value = nullptr, *key_gradient = nullptr, *value_gradient = nullptr;
  std::byte* query_gradient = nullptr;  ///< rows as those of dqkv; null: there
  std::byte* graph = nullptr;
  std::int64_t bytes = 0;  ///< of all
};

/// Statistics in log_sum_exp's own place: whole sequences are there as the graph has them. Operands begin at
/// 16 bytes, which those of a piece of the heads need not do there.
bool reads_log_sum_exp(const CudnnProblem& problem, std::int64_t tokens) {
  if (problem.ragged) return false;
  return problem.direction == Direction::forward ||
         (problem.batch == 1 && problem.longest == tokens && tokens % 4 == 0);
}

/// @param tokens of the whole operation
/// @param base null: only the size is asked for
Scratch carve(const Part& part, std::int64_t tokens, void* base) {
  Carving carving(base);
  Scratch scratch;
  const CudnnProblem& problem = part.problem();
  for (const Launches& launches : part.launches) {
    if (!problem.ragged) break;
    RaggedTables& tables = scratch.tables.emplace_back();
    tables.above = launches.above;
    tables.longest = launches.problem.longest;
    tables.launches = launches.pieces;
    tables.batch = launches.problem.batch;
    if (tables.launches == 0) continue;
    tables.lengths = carving.take<std::int32_t>(tables.launches * tables.row());
    for (auto& offsets : tables.offsets) offsets = carving.take<std::int64_t>(tables.launches * tables.row());
  }
  if (!reads_log_sum_exp(problem, tokens))
    scratch.statistics = carving.take<float>(problem.query_heads * problem.tokens);
  if (problem.packs_keys()) {
    const std::int64_t bytes = problem.tokens * problem.key_row() * size_of(problem.dtype);
    for (std::byte** place : {&scratch.key, &scratch.value, &scratch.key_gradient, &scratch.value_gradient})
      *place = carving.take<std::byte>(bytes);
  }
  if (part.apart)
    scratch.query_gradient =
        carving.take<std::byte>(problem.tokens * problem.qkv_row * size_of(problem.dtype));
  std::int64_t graph_bytes = 0;
  for (const Launches& launches : part.launches)
    graph_bytes = std::max(graph_bytes, launches.graph->workspace_bytes());
  scratch.graph = carving.take<std::byte>(graph_bytes);
  scratch.bytes = carving.bytes();
  return scratch;
}

/// 0 for sequences that it holds entirely.
std::int64_t window_of(AttentionShape shape, std::int64_t longest) {
  return shape.window < longest ? shape.window : 0;
}

/// op::Attention or op::AttentionBackward.
template <class Operands>
CudnnProblem problem_of(const Operands& o) {
  CudnnProblem problem;
  problem.direction = std::is_same_v<Operands, op::Attention> ? Direction::forward : Direction::backward;
  problem.tokens = o.qkv.rows;
  problem.longest = std::min(o.documents.max_seqlen, problem.tokens);
  problem.batch = o.documents.count;
  // Else no document can be shorter than the longest.
  problem.ragged = problem.batch * problem.longest != problem.tokens;
  problem.query_heads = o.shape.query_heads;
  problem.key_value_heads = o.shape.key_value_heads;
  problem.head_dim = o.shape.head_dim;
  problem.window = window_of(o.shape, problem.longest);
  problem.qkv_row = o.shape.qkv_cols();
  problem.out_row = o.shape.query_cols();
  problem.dtype = o.qkv.dtype;
  return problem;
}

/// Sequences of equal length, in pieces of at most so many bytes of dP.
Division divide_sequences(const CudnnProblem& whole, AttentionShape shape, std::int64_t dp_room) {
  const AttentionPiece piece = attention_piece(shape, whole.batch, whole.longest, dp_room);
  if (piece.sequences == 0) return {};
  CudnnProblem problem = whole;
  problem.batch = piece.sequences;
  problem.tokens = piece.sequences * whole.longest;
  problem.key_value_heads = piece.key_value_heads;
  problem.query_heads = piece.key_value_heads * (shape.query_heads / shape.key_value_heads);
  const std::int64_t pieces = whole.batch / piece.sequences;
  return {{{.launches = {{.problem = problem, .pieces = pieces}},
            .head_pieces = shape.key_value_heads / piece.key_value_heads,
            .apart = problem.packs_keys() && pieces > 1}}};
}

/// Documents: those of similar length together. How many documents and heads a launch has depends on shapes only, so
/// that what is in the micro-batch decides how often a graph is launched, and never which.
Division divide_documents(const CudnnProblem& whole, AttentionShape shape, const LengthClasses& lengths,
                          std::int64_t dp_room) {
  Division division;
  std::int64_t above = 0, all_pieces = 0;
  std::size_t of_class = 0;
  for (const auto& launch : document_launches(shape, whole.tokens, whole.longest, dp_room)) {
    const std::int64_t most = std::min(whole.batch, whole.tokens / (above + 1));
    const std::int64_t documents = lengths.counted() ? std::min(lengths.documents[of_class], most) : most;
    ++of_class;
    if (launch.documents == 0) {
      division.leaves_documents = division.leaves_documents || documents > 0;
    } else {
      CudnnProblem problem = whole;
      problem.longest = launch.longest;
      problem.window = window_of(shape, launch.longest);
      problem.batch = launch.documents;
      problem.key_value_heads = launch.key_value_heads;
      problem.query_heads = launch.key_value_heads * (shape.query_heads / shape.key_value_heads);
      const std::int64_t head_pieces = shape.key_value_heads / launch.key_value_heads;
      if (division.parts.empty() || division.parts.back().head_pieces != head_pieces)
        division.parts.push_back({.launches = {}, .head_pieces = head_pieces});
      const std::int64_t pieces = ceil_div(documents, launch.documents);
      all_pieces += pieces;
      division.parts.back().launches.push_back({.problem = problem, .pieces = pieces, .above = above});
    }
    above = launch.longest;
  }
  const bool apart = whole.packs_keys() && (all_pieces > 1 || division.leaves_documents);
  for (Part& part : division.parts) part.apart = apart;
  return division;
}

/// Columns of rows of qkv, out or their gradients, from a token on.
std::byte* at(const Tensor& rows, std::int64_t token, std::int64_t column) {
  return static_cast<std::byte*>(rows.data) + (token * rows.cols + column) * size_of(rows.dtype);
}

/// A piece of the heads and of the tokens.
struct Piece {
  std::int64_t token = 0;                         ///< the first
  std::int64_t query_column = 0;                  ///< in rows of qkv and out
  std::int64_t key_column = 0, value_column = 0;  ///< in rows of qkv
};
Piece piece_of(const CudnnProblem& problem, AttentionShape shape, std::int64_t heads, std::int64_t tokens) {
  const std::int64_t keys = heads * problem.key_value_heads * problem.head_dim;
  return {.token = problem.ragged ? 0 : tokens * problem.tokens,
          .query_column = heads * problem.query_heads * problem.head_dim,
          .key_column = shape.query_cols() + keys,
          .value_column = shape.query_cols() + shape.key_value_cols() + keys};
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
void copy_gradients(const CudnnProblem& problem, const CudnnOperands& operands, const Piece& piece,
                    const Tensor& dqkv, cudaStream_t stream) {
  const std::int64_t size = size_of(problem.dtype);
  const auto copy = [&](CudnnOperand from, std::int64_t from_row, std::int64_t heads, std::int64_t column) {
    copy_documents({.lengths = static_cast<const std::int32_t*>(operands.at(kQueryLengths)),
                    .begins = static_cast<const std::int64_t*>(operands.at(kStatisticsOffsets)),
                    .batch = problem.batch,
                    .width = problem.query_heads,
                    .from = static_cast<const std::byte*>(operands.at(from)),
                    .to = at(dqkv, 0, column),
                    .from_row = from_row * size,
                    .to_row = problem.qkv_row * size,
                    .bytes = heads * problem.head_dim * size},
                   stream);
  };
  copy(kQueryGradient, problem.qkv_row, problem.query_heads, piece.query_column);
  copy(kKeyGradient, problem.key_row(), problem.key_value_heads, piece.key_column);
  copy(kValueGradient, problem.key_row(), problem.key_value_heads, piece.value_column);
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
    const Division division = division_to_run(o);
    const Part& part = division.parts.front();  // which has room for all
    const CudnnProblem& problem = part.problem();
    const Scratch scratch = carve(part, tokens, o.workspace.data);
    fill_tables(o.documents, part, scratch, stream);
    const auto run_piece = [&](const Launches& launches, const Piece& piece, CudnnOperands operands) {
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
    const Division division = division_to_run(o);
    for (const Part& part : division.parts) {
      if (part.has_launches()) run_part(o, part, stream);
    }
  }

  std::int64_t longest_with_room(const op::AttentionBackward& o) const override {
    const Division division = division_of(o);
    return division.leaves_documents ? division.longest() : 0;
  }

  std::string describe() const override {
    const std::size_t version = cudnnGetVersion();
    std::string notes;
    for (const std::string& note : notes_) {
      if (!note.empty()) notes += (notes.empty() ? "" : "; ") + note;
    }
    return fmt::format("cuDNN {}.{}.{}{}", version / 10000, version / 100 % 100, version % 100,
                       notes.empty() ? "" : " (" + notes + ")");
  }

 private:
  void run_part(const op::AttentionBackward& o, const Part& part, cudaStream_t stream) {
    const std::int64_t tokens = o.qkv.rows;
    const CudnnProblem& problem = part.problem();
    const Scratch scratch = carve(part, tokens, o.workspace.data);
    fill_tables(o.documents, part, scratch, stream);
    const bool packs = problem.packs_keys(), apart = part.apart;
    for (std::int64_t heads = 0; heads < part.head_pieces; ++heads) {
      const std::int64_t first_head = heads * problem.query_heads;
      const auto copy_log_sum_exp = [&](std::int64_t first_token, std::int64_t count) {
        copy_statistics(log_sum_exp_of(problem, o.log_sum_exp, first_head, first_token),
                        statistics_of(problem, scratch.statistics), problem.query_heads, count,
                        problem.longest, stream);
      };
      const Piece columns = piece_of(problem, o.shape, heads, 0);
      if (packs) {
        copy_log_sum_exp(0, tokens);
        copy_heads(problem, Copy::out_of_rows, at(o.qkv, 0, columns.key_column), scratch.key, stream);
        copy_heads(problem, Copy::out_of_rows, at(o.qkv, 0, columns.value_column), scratch.value, stream);
      }
      const auto run_piece = [&](const Launches& launches, const Piece& piece, CudnnOperands operands) {
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
    notes_[static_cast<std::size_t>(direction)] =
        fmt::format("{} by native kernels: {}", to_string(direction), reason);
    return false;
  }
  void accept(const Division& division) {
    const Part& part = division.parts.back();  // of the longest
    const CudnnProblem& problem = part.problem();
    const std::int64_t pieces = part.head_pieces * (problem.ragged ? 1 : part.launches.front().pieces);
    std::string& note = notes_[static_cast<std::size_t>(problem.direction)];
    note = pieces == 1 ? "" : fmt::format("{} in {} pieces", to_string(problem.direction), pieces);
    if (division.leaves_documents)
      note = fmt::format("{} of documents of more than {} tokens by native kernels",
                         to_string(problem.direction), division.longest());
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
    if (problem.dtype != DType::bfloat16 && problem.dtype != DType::float16)
      return fmt::format("{} is not its dtype", to_string(problem.dtype));
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
  Division division_of(const Operands& o) const {
    const CudnnProblem whole = problem_of(o);
    std::int64_t dp_room = std::numeric_limits<std::int64_t>::max();
    if constexpr (std::is_same_v<Operands, op::AttentionBackward>) {
      if (deterministic_ && deterministic_attention_keeps_dp(gpu_.compute_capability / 10))
        dp_room = o.dp_room;
    }
    return whole.ragged ? divide_documents(whole, o.shape, o.documents.lengths, dp_room)
                        : divide_sequences(whole, o.shape, dp_room);
  }

  template <class Operands>
  bool supports_operands(const Operands& o) {
    if (o.qkv.rows < 1 || o.documents.max_seqlen < 1 || o.documents.count < 1) return false;
    const CudnnProblem whole = problem_of(o);
    std::string why_not = open();
    if (why_not.empty()) why_not = why_unsuitable(whole);
    if (!why_not.empty()) return refuse(whole.direction, why_not);

    Division division = division_of(o);
    if (division.parts.empty())
      return refuse(whole.direction, "run.attention_workspace has no room for deterministic gradients");
    for (Part& part : division.parts) {
      // Not every kernel of it counts elements in 64 bits.
      if (part.problem().tokens * whole.qkv_row > std::numeric_limits<std::int32_t>::max())
        return refuse(whole.direction, "too many tokens at once");
      for (Launches& launches : part.launches) {
        launches.graph = graph_of(launches.problem, o.workspace.bytes(), why_not);
        if (launches.graph == nullptr) return refuse(whole.direction, why_not);
      }
      const std::int64_t needed = carve(part, whole.tokens, nullptr).bytes;
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
  Division division_to_run(const Operands& o) const {
    Division division = division_of(o);
    bool supported = !division.parts.empty();
    for (Part& part : division.parts) {
      for (Launches& launches : part.launches) {
        const auto found = graphs_.find(launches.problem);
        launches.graph = found != graphs_.end() && found->second.graph ? &*found->second.graph : nullptr;
        supported = supported && launches.graph != nullptr;
      }
      supported = supported && carve(part, o.qkv.rows, nullptr).bytes <= o.workspace.bytes();
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

  static void fill_tables(const Documents& documents, const Part& part, const Scratch& scratch,
                          cudaStream_t stream) {
    const CudnnProblem& problem = part.problem();
    if (!problem.ragged) return;
    const auto* const offsets =
        elements_of<std::int32_t>(documents.cu_seqlens, DType::int32, 1, problem.tokens + 1, "cu_seqlens");
    RaggedWidths widths;
    widths.of[kQueryTable] = problem.qkv_row;
    widths.of[kKeyTable] = problem.key_row();
    widths.of[kOutTable] = problem.out_row;
    widths.of[kStatisticsTable] = problem.query_heads;
    fill_ragged_tables(offsets, documents.count, problem.tokens, scratch.tables, widths, stream);
  }

  /// run_piece(launches, piece, operands) for each launch of a piece of the heads; the operands are the
  /// tables, if there are any.
  template <class RunPiece>
  static void for_each_launch(const Part& part, AttentionShape shape, std::int64_t heads,
                              const Scratch& scratch, const RunPiece& run_piece) {
    for (std::size_t i = 0; i < part.launches.size(); ++i) {
      const Launches& launches = part.launches[i];
      const CudnnProblem& problem = launches.problem;
      for (std::int64_t p = 0; p < launches.pieces; ++p) {
        run_piece(launches, piece_of(problem, shape, heads, p),
                  problem.ragged ? tables_of(scratch.tables[i], p) : CudnnOperands{});
      }
    }
  }

  void execute(const Launches& launches, CudnnOperands& operands, const Scratch& scratch,
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
