// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN's fused graphs, where the build found its C++ frontend and this GPU and shape are
// supported; native kernels (attention.cu) otherwise. The two directions are asked for apart, since what the
// forward direction leaves (out, log_sum_exp) is the same with either.
//
// Equal sequences are a plain causal problem. Packed documents are cuDNN's ragged layout with a padding mask,
// launched for each class of lengths (length_classes.hpp), so that the length that counts is a document's and
// not that of the sequence it is packed into. Graphs are built where supports() meets a shape first, which
// takes up to seconds and must not happen while a CUDA graph is captured: those of all classes at once, and
// whatever the documents, the same ones. CudaDevice::prepare() asks before there are any.
//
// Deterministic gradients: GPUs 10.x accumulate dQ in a fixed order (cuDNN 9.18). All others store
// dP instead, so they come in pieces as the workspace allows (attention_sizes.hpp), of which the bits do not
// depend; on Hopper from cuDNN 9.25 on, CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT=0 in the environment chooses a
// fixed order there too, which is slower.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/cuda/common.hpp"
#include "llampi/device/operations.hpp"

namespace llampi::device::cuda {

class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;
  /// True if this can be done with this workspace, whose address and those of the other operands do not
  /// matter. Builds and keeps the graphs.
  virtual bool supports(const op::Attention& o) = 0;
  virtual bool supports(const op::AttentionBackward& o) = 0;
  /// The workspace is aligned to 256 bytes. @throws Error if the problem is not supported
  virtual void run(const op::Attention& o, cudaStream_t stream) = 0;
  virtual void run(const op::AttentionBackward& o, cudaStream_t stream) = 0;
  /// Of at most so many tokens the documents are that have room, where others may have none: these are left to native kernels,
  /// which may write the gradients of all before run(). 0: all have room.
  virtual std::int64_t longest_with_room(const op::AttentionBackward& o) const = 0;
  /// "cuDNN 9.19.0", and after the first use what was decided last where that is worth a word: "backward in 4
  /// pieces", "backward by native kernels: too many tokens at once".
  virtual std::string describe() const = 0;
};

/// For the current device of this thread. Null where the build has no cuDNN frontend.
std::unique_ptr<CudnnAttention> make_cudnn_attention(bool deterministic);
/// Likewise for a GPU that is not here: it says what it supports, and does nothing. For tests.
/// @param compute_capability 90 for 9.0
/// @param properties the JSON text of cuDNN's CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION
std::unique_ptr<CudnnAttention> make_cudnn_attention(bool deterministic, int compute_capability,
                                                     const std::string& properties);

}  // namespace llampi::device::cuda
