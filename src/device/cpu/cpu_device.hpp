// SPDX-License-Identifier: Apache-2.0
// The CPU device: float32, matrix products from a library, everything else from kernels.hpp, over OpenMP
// threads.
#pragma once

#include <vector>

#include "device/cpu/gemm.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cpu/sizes.hpp"
#include "device/host_device.hpp"

namespace llampi::device {

class CpuDevice : public HostDevice {  // not final: tests break single operations
 public:
  /// @param kernels one of available_kernels(): make_cpu_device() takes the fastest, tests all of them
  CpuDevice(int threads, const Kernels& kernels);
  std::string describe() const override;

  std::int64_t attention_workspace(AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                   DType dtype) const override;
  std::int64_t attention_backward_workspace(AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                            DType dtype) const override;
  std::int64_t rms_norm_backward_workspace(std::int64_t tokens, std::int64_t hidden,
                                           DType dtype) const override;
  std::int64_t head_loss_workspace(std::int64_t tokens, std::int64_t hidden, std::int64_t vocabulary,
                                   DType dtype) const override;

  // rows.cpp
  void embedding(const Batch& batch, Tensor table, Tensor x) override;
  void embedding_backward(const Batch& batch, Tensor dx, Tensor dtable, Accumulate accumulate) override;
  void rms_norm(Tensor x, Tensor weight, double eps, Tensor y, Tensor inverse_rms) override;
  void rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor inverse_rms, Tensor dx,
                         Accumulate accumulate_dx, Tensor dweight, Accumulate accumulate_dweight,
                         Tensor workspace) override;
  void add(Tensor source, Tensor destination) override;
  void copy(Tensor source, Tensor destination) override;
  void zero(Tensor destination) override;

  // products.cpp
  void qkv_rope(const Batch& batch, Tensor x, Tensor weight, Tensor rope, AttentionShape shape,
                Tensor qkv) override;
  void qkv_rope_backward(const Batch& batch, Tensor dqkv, Tensor x, Tensor weight, Tensor rope,
                         AttentionShape shape, Tensor dx, Tensor dweight,
                         Accumulate accumulate_dweight) override;
  void projection_residual(Tensor x, Tensor weight, Tensor residual, Tensor y) override;
  void projection_backward(Tensor dy, Tensor x, Tensor weight, Tensor dx, Tensor dweight,
                           Accumulate accumulate_dweight) override;
  void gate_up_swiglu(Tensor x, Tensor weight, Tensor gate_up, Tensor activated) override;
  void swiglu(Tensor gate_up, Tensor activated) override;
  void gate_up_swiglu_backward(Tensor dactivated, Tensor gate_up, Tensor x, Tensor weight, Tensor dx,
                               Tensor dweight, Accumulate accumulate_dweight) override;
  void linear(Tensor x, Tensor weight, Tensor y) override;

  // attention.cpp
  void attention(const Batch& batch, std::int64_t longest, AttentionShape shape, Tensor qkv, Tensor out,
                 Tensor log_sum_exp, Tensor workspace) override;
  void attention_cached(const Batch& batch, AttentionShape shape, Tensor qkv, Tensor cache, Tensor out,
                        Tensor workspace) override;
  void attention_backward(const Batch& batch, std::int64_t longest, AttentionShape shape, Tensor dout,
                          Tensor qkv, Tensor out, Tensor log_sum_exp, Tensor dqkv, Tensor workspace) override;

  // head.cpp
  void head_loss(const Batch& batch, Tensor x, Tensor weight, StepScalars* scalars,
                 Tensor workspace) override;
  void head_loss_backward(const Batch& batch, Tensor x, Tensor weight, StepScalars* scalars, Tensor dx,
                          Tensor dweight, Accumulate accumulate_dweight, Tensor workspace) override;

  // update.cpp
  void max_magnitude(Tensor gradient, std::span<const UpdateRange> ranges, Tensor maximum) override;
  void sum_squares(Tensor gradient, std::span<const UpdateRange> ranges, Tensor maximum,
                   Tensor limbs) override;

  // adamw.cpp
  void adamw(Tensor gradient, std::span<const UpdateRange> ranges, const AdamWConstants& constants,
             const StepScalars* scalars, Tensor master, Tensor exp_avg, Tensor exp_avg_sq,
             Tensor shard) override;

  // cast.cpp
  void cast(Tensor source, Tensor destination) override;

 private:
  void zero_in_parallel(float* data, std::int64_t elements) const;
  /// dx = dy w; dw (+)= dy^T x, unless dw is nullptr
  void product_backward(const float* dy, const float* x, const float* w, std::int64_t rows, std::int64_t out,
                        std::int64_t in, float* dx, float* dw, Accumulate accumulate);
  void rotate(const Batch& batch, float* qkv, Tensor rope, AttentionShape shape, float direction) const;

  int threads_;
  const Kernels& kernels_;
  CpuSizes sizes_;
  Gemm gemm_;
};

/// The operand's elements, which must be float32 and [rows, cols].
inline float* floats(const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* name) {
  return elements_of<float>(tensor, rows, cols, name);
}
/// The same of the gradient of a weight; nullptr if the weight is frozen.
inline float* gradient_floats(const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* name) {
  return weight_gradient_of<float>(tensor, rows, cols, name);
}
/// A 16-bit format, as bits. The shape has been checked.
inline std::uint16_t* halves(const Tensor& tensor) { return static_cast<std::uint16_t*>(tensor.data); }
/// int32 [1, cols]
inline const std::int32_t* integers(const Tensor& tensor, std::int64_t cols, const char* name) {
  return elements_of<std::int32_t>(tensor, 1, cols, name);
}
/// The workspace, which must have at least so many bytes.
void* workspace_of(const Tensor& workspace, std::int64_t bytes);

inline float beta(Accumulate accumulate) { return accumulate == Accumulate::yes ? 1.0F : 0.0F; }

}  // namespace llampi::device
