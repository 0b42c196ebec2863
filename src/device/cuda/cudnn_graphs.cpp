// SPDX-License-Identifier: Apache-2.0
#ifdef LLAMPI_CUDNN
#include "device/cuda/cudnn_graphs.hpp"

// GCC 12 sees a vector of negative size in the frontend, where it inlines much.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#endif
#include <cudnn_frontend.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cmath>
#include <vector>

#include "llampi/core/error.hpp"

static_assert(CUDNN_FRONTEND_VERSION >= 11300, "cuDNN's C++ frontend 1.13 or newer is needed");

namespace llampi::device::cuda {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Attributes = fe::graph::Tensor_attributes;
using TensorPointer = std::shared_ptr<Attributes>;

void check(fe::error_t status) {
  if (status.is_bad()) throw Error(fmt::format("attention by cuDNN: {}", status.get_message()));
}

class GraphMaker {
 public:
  GraphMaker(const CudnnProblem& problem, int compute_capability)
      : problem_(problem), graph_(std::make_shared<Graph>()) {
    graph_->set_sm_version(compute_capability)
        .set_io_data_type(problem.dtype == DType::float16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (!problem.ragged) return;
    query_offsets_ = table("query_offsets", kQueryOffsets, problem.batch + 1, fe::DataType_t::INT64);
    key_offsets_ = table("key_offsets", kKeyOffsets, problem.batch + 1, fe::DataType_t::INT64);
    value_offsets_ = table("value_offsets", kValueOffsets, problem.batch + 1, fe::DataType_t::INT64);
    out_offsets_ = table("out_offsets", kOutOffsets, problem.batch + 1, fe::DataType_t::INT64);
    statistics_offsets_ =
        table("statistics_offsets", kStatisticsOffsets, problem.batch + 1, fe::DataType_t::INT64);
  }

  std::shared_ptr<Graph> forward() {
    auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    set_common(options);
    const auto [out, statistics] = graph_->sdpa(query(), key(), value(), options);
    out->set_output(true).set_uid(kOut);
    set_rows(*out, problem_.query_heads, problem_.out_row, out_offsets_);
    statistics->set_output(true).set_uid(kStatistics);
    set_statistics(*statistics);
    return graph_;
  }

  std::shared_ptr<Graph> backward(bool deterministic) {
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_deterministic_algorithm(deterministic);
    set_common(options);
    // Else room for `batch` documents of `longest` tokens is taken.
    if (problem_.ragged)
      options.set_max_total_seq_len_q(problem_.tokens).set_max_total_seq_len_kv(problem_.tokens);

    const TensorPointer out = rows("out", kOut, problem_.query_heads, problem_.out_row, out_offsets_);
    const TensorPointer dout =
        rows("dout", kOutGradient, problem_.query_heads, problem_.out_row, out_offsets_);
    Attributes statistics;
    statistics.set_name("statistics").set_uid(kStatistics);
    set_statistics(statistics);
    const auto [dquery, dkey, dvalue] =
        graph_->sdpa_backward(query(), key(), value(), out, dout, graph_->tensor(statistics), options);
    dquery->set_output(true).set_uid(kQueryGradient);
    set_rows(*dquery, problem_.query_heads, problem_.qkv_row, query_offsets_);
    dkey->set_output(true).set_uid(kKeyGradient);
    set_rows(*dkey, problem_.key_value_heads, problem_.key_row(), key_offsets_);
    dvalue->set_output(true).set_uid(kValueGradient);
    set_rows(*dvalue, problem_.key_value_heads, problem_.key_row(), value_offsets_);
    return graph_;
  }

 private:
  TensorPointer query() {
    return rows("query", kQuery, problem_.query_heads, problem_.qkv_row, query_offsets_);
  }
  TensorPointer key() {
    return rows("key", kKey, problem_.key_value_heads, problem_.key_row(), key_offsets_);
  }
  TensorPointer value() {
    return rows("value", kValue, problem_.key_value_heads, problem_.key_row(), value_offsets_);
  }

  template <class Options>
  void set_common(Options& options) {
    options.set_attn_scale(static_cast<float>(1 / std::sqrt(static_cast<double>(problem_.head_dim))));
    options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);  // causal
    if (problem_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(problem_.window));
    if (!problem_.ragged) return;
    options.set_padding_mask(true)
        .set_seq_len_q(table("query_lengths", kQueryLengths, problem_.batch, fe::DataType_t::INT32))
        .set_seq_len_kv(table("key_lengths", kKeyLengths, problem_.batch, fe::DataType_t::INT32));
  }

  /// Integers that are made anew for each batch.
  TensorPointer table(const char* name, CudnnOperand operand, std::int64_t entries, fe::DataType_t type) {
    return graph_->tensor(Attributes()
                              .set_name(name)
                              .set_uid(operand)
                              .set_dim({entries, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(type));
  }

  /// Heads side by side in rows of `row` elements, a row for each token.
  TensorPointer rows(const char* name, CudnnOperand operand, std::int64_t heads, std::int64_t row,
                     const TensorPointer& offsets) {
    Attributes tensor;
    tensor.set_name(name).set_uid(operand);
    set_rows(tensor, heads, row, offsets);
    return graph_->tensor(tensor);
  }
  void set_rows(Attributes& tensor, std::int64_t heads, std::int64_t row, const TensorPointer& offsets) {
    tensor.set_dim({problem_.batch, heads, problem_.longest, problem_.head_dim})
        .set_stride({problem_.longest * row, problem_.head_dim, row, 1});
    if (problem_.ragged) tensor.set_ragged_offset(offsets);
  }

  void set_statistics(Attributes& tensor) {
    const std::int64_t heads = problem_.query_heads, length = problem_.longest;
    tensor.set_data_type(fe::DataType_t::FLOAT).set_dim({problem_.batch, heads, length, 1});
    if (problem_.ragged) {
      tensor.set_stride({heads * length, 1, heads, 1}).set_ragged_offset(statistics_offsets_);
    } else if (problem_.direction == Direction::forward && problem_.batch > 1) {
      tensor.set_stride({length, problem_.tokens, 1, 1});  // [Hq, T]
    } else {
      tensor.set_stride({heads * length, length, 1, 1});
    }
  }

  const CudnnProblem& problem_;
  std::shared_ptr<Graph> graph_;
  TensorPointer query_offsets_, key_offsets_, value_offsets_, out_offsets_, statistics_offsets_;
};

std::shared_ptr<const fe::DeviceProperties> properties_of(const CudnnGpu& gpu) {
  std::vector<std::uint8_t> text(gpu.properties.begin(), gpu.properties.end());
  text.push_back(0);
  auto properties = std::make_shared<fe::DeviceProperties>();
  check(properties->deserialize(text));
  return properties;
}

}  // namespace

CudnnGraph::CudnnGraph(const CudnnGpu& gpu, const CudnnProblem& problem, bool deterministic,
                       std::int64_t workspace_bytes) {
  GraphMaker maker(problem, gpu.compute_capability);
  graph_ = problem.direction == Direction::forward ? maker.forward() : maker.backward(deterministic);
  graph_->deselect_workspace_greater_than(workspace_bytes);
  if (gpu.handle != nullptr) {
    check(graph_->build(gpu.handle, {fe::HeurMode_t::A}));
  } else {
    graph_->set_device_properties(properties_of(gpu));
    check(graph_->build({fe::HeurMode_t::A}));
  }
  check(graph_->get_workspace_size(workspace_bytes_));
}

void CudnnGraph::execute(cudnnHandle_t handle, CudnnOperands& operands, void* workspace) const {
  check(graph_->execute(handle, operands, workspace));
}

}  // namespace llampi::device::cuda
#endif
