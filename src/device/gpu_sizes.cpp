// SPDX-License-Identifier: Apache-2.0
// Scratch memory of the GPU's operations. Each kernel's header of sizes says how it is cut; none of them
// needs CUDA.
#include "device/cuda/attention_sizes.hpp"
#include "device/cuda/gemm_sizes.hpp"
#include "device/cuda/loss_sizes.hpp"
#include "device/cuda/sizes.hpp"
#include "llampi/core/elements.hpp"
#include "llampi/device/device.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::device {
namespace {

void require_kernels(DType dtype) {
  if (dtype != DType::float32 && !is_half(dtype))
    throw Error(fmt::format("the GPU has no kernels for {}", to_string(dtype)));
}

class GpuSizes final : public OperationSizes {
 public:
  std::int64_t shared_workspace() const override { return cuda::kGemmWorkspace; }
  bool stages_inputs() const override { return true; }

  std::int64_t attention_workspace(AttentionShape shape, std::int64_t tokens, std::int64_t,
                                   DType dtype) const override {
    require_kernels(dtype);
    return cuda::attention_forward_bytes(shape, tokens);
  }

  std::int64_t attention_backward_workspace(AttentionShape shape, std::int64_t tokens,
                                            std::int64_t max_seqlen, DType dtype,
                                            std::int64_t attention_room) const override {
    require_kernels(dtype);
    return cuda::attention_backward_bytes(shape, tokens, max_seqlen,
                                          dtype == DType::float32 ? 0 : attention_room);
  }

  std::int64_t rms_norm_backward_workspace(std::int64_t tokens, std::int64_t hidden,
                                           DType dtype) const override {
    require_kernels(dtype);
    return cuda::rms_norm_backward_bytes(tokens, hidden);
  }

  std::int64_t qkv_transform_backward_workspace(AttentionShape shape, std::int64_t tokens,
                                                DType dtype) const override {
    require_kernels(dtype);
    return cuda::qkv_transform_backward_bytes(shape, tokens);
  }

  std::int64_t linear_cross_entropy_workspace(std::int64_t tokens, std::int64_t vocabulary, DType dtype,
                                              std::int64_t logits_bytes) const override {
    require_kernels(dtype);
    return cuda::head_loss_bytes(tokens, vocabulary, dtype, logits_bytes);
  }
};

}  // namespace

void require_gpu_kernels(std::int64_t head_dim, std::int64_t hidden, DType dtype) {
  const auto require_at_most = [](const std::string& what, std::int64_t size, std::int64_t most) {
    if (size > most)
      throw_user_error("the model has {} = {}, and GPUs have kernels for at most {}; use cpu as the device",
                       what, size, most);
  };
  require_at_most("head_dim", head_dim, kMostGpuHeadDim);
  require_at_most(fmt::format("hidden_size (in {})", to_string(dtype)), hidden,
                  most_gpu_hidden(hidden, dtype));
}

std::int64_t attention_pieces(AttentionShape shape, std::int64_t sequences, std::int64_t seq_len,
                              std::int64_t attention_room) {
  const auto piece = cuda::attention_piece(shape, sequences, seq_len, attention_room);
  if (piece.sequences == 0) return 0;
  return sequences / piece.sequences * (shape.key_value_heads / piece.key_value_heads);
}

std::unique_ptr<OperationSizes> make_gpu_sizes() { return std::make_unique<GpuSizes>(); }

}  // namespace llampi::device
