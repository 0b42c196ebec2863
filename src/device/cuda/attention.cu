// SPDX-License-Identifier: Apache-2.0
// Attention of the CUDA device: cuDNN's kernels where they take the problem, else the own ones.
#include <algorithm>
#include <cmath>

#include "device/cuda/attention.cuh"
#include "device/cuda/attention_sizes.hpp"
#include "device/cuda/cuda_device.hpp"

namespace llampi::device::cuda {
namespace {

/// The operands of the forward direction, after a check of each.
AttentionOperands operands_of(const AttentionProblem& problem, const Tensor& qkv, const Tensor& out,
                              const Tensor& log_sum_exp) {
  AttentionOperands operands;
  operands.dtype = qkv.dtype;
  operands.qkv = elements_of(qkv, qkv.dtype, problem.tokens, problem.qkv_stride, "qkv");
  operands.out = elements_of(out, qkv.dtype, problem.tokens, problem.out_stride, "out");
  operands.log_sum_exp =
      elements_of<float>(log_sum_exp, DType::float32, problem.query_heads, problem.tokens, "log_sum_exp");
  return operands;
}

/// Whether cuDNN does this direction, which `supported` says. Both agree on log_sum_exp, so that each
/// direction can have the kernels that are best for it. @throws Error if cuDNN was demanded and cannot
bool by_cudnn(const CudnnAttention* cudnn, GpuAttention choice, bool supported) {
  if (supported || choice != GpuAttention::cudnn) return supported;
  throw Error(fmt::format("attention by cuDNN was asked for, but {}",
                          cudnn == nullptr ? "this build is without cuDNN's frontend" : cudnn->describe()));
}

}  // namespace

void check_head_dim(std::int64_t head_dim) {
  if (head_dim > kMaximumDim) {
    throw Error(
        fmt::format("the GPU's attention takes heads of at most {} elements, not {}", kMaximumDim, head_dim));
  }
}

AttentionProblem attention_problem(const Documents& documents, AttentionShape shape) {
  check_head_dim(shape.head_dim);
  require(shape.key_value_heads > 0 && shape.query_heads % shape.key_value_heads == 0,
          "query heads are a multiple of the key/value heads");
  const std::int64_t tokens = documents.positions.cols;
  AttentionProblem problem;
  problem.positions = elements_of<std::int32_t>(documents.positions, DType::int32, 1, tokens, "positions");
  problem.tokens = static_cast<int>(tokens);
  problem.query_heads = static_cast<int>(shape.query_heads);
  problem.key_value_heads = static_cast<int>(shape.key_value_heads);
  problem.dim = static_cast<int>(shape.head_dim);
  problem.group = problem.query_heads / problem.key_value_heads;
  const std::int64_t window = shape.window > 0 ? std::min(shape.window, tokens) : tokens;
  problem.reach = static_cast<int>(std::max<std::int64_t>(window - 1, 0));
  problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
  problem.qkv_stride = shape.qkv_cols();
  problem.out_stride = shape.query_cols();
  return problem;
}

void CudaDevice::execute(const op::Attention& o) {
  if (by_cudnn(cudnn_.get(), options_.attention, cudnn_supports(o))) {
    cudnn_->run(o, compute());
    return;
  }
  const AttentionProblem problem = attention_problem(o.documents, o.shape);
  const AttentionOperands operands = operands_of(problem, o.qkv, o.out, o.log_sum_exp);
  if (fits_tensor_cores(problem, o.qkv.dtype)) {
    tensor_attention(problem, operands, compute());
  } else {
    plain_attention(problem, operands, compute());
  }
}

void CudaDevice::prepare(const Operation& operation) {
  if (const auto* const forward = std::get_if<op::Attention>(&operation)) cudnn_supports(*forward);
  const auto* const backward = std::get_if<op::AttentionBackward>(&operation);
  if (backward != nullptr && cudnn_supports(*backward)) longest_with_room(*backward);
}

std::int64_t CudaDevice::longest_with_room(const op::AttentionBackward& o) const {
  const std::int64_t longest = cudnn_->longest_with_room(o);
  by_cudnn(cudnn_.get(), options_.attention, longest == 0);
  return longest;
}

void CudaDevice::execute(const op::AttentionBackward& o) {
  const bool cudnn = by_cudnn(cudnn_.get(), options_.attention, cudnn_supports(o));
  const std::int64_t with_room = cudnn ? longest_with_room(o) : 0;
  // The kernels of a document depend on its length alone, and so do its bits, whatever the others are.
  if (!cudnn || with_room > 0) native_attention_backward(o, with_room);
  if (cudnn) cudnn_->run(o, compute());
}

void CudaDevice::native_attention_backward(const op::AttentionBackward& o, std::int64_t not_asked) {
  AttentionProblem problem = attention_problem(o.documents, o.shape);
  problem.not_asked = static_cast<int>(not_asked);
  AttentionOperands operands = operands_of(problem, o.qkv, o.out, o.log_sum_exp);
  operands.dout = elements_of(o.dout, o.qkv.dtype, problem.tokens, problem.out_stride, "dout");
  operands.dqkv = elements_of(o.dqkv, o.qkv.dtype, problem.tokens, problem.qkv_stride, "dqkv");
  require(o.workspace.bytes() >= own_attention_backward_bytes(o.shape, problem.tokens),
          "workspace of attention_backward");
  operands.delta = static_cast<float*>(o.workspace.data);
  attention_delta(problem, operands, compute());
  if (fits_tensor_cores(problem, o.qkv.dtype)) {
    tensor_attention_backward(problem, operands, properties_.sharedMemPerBlockOptin, compute());
  } else {
    plain_attention_backward(problem, operands, compute());
  }
}

}  // namespace llampi::device::cuda
