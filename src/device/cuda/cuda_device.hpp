// SPDX-License-Identifier: Apache-2.0
// The CUDA device: one GPU of this process. Host code only; kernels are in the .cu files beside it.
//
//   cuda_device.cu    memory, streams, events, copies, casts
//   capture.cpp       capture of work into CUDA graphs, ranges for profilers
//   products.cu       the operations around matrix products, which gemm.{hpp,cpp} hands to cuBLASLt
//   attention*.cu     own attention; that of cuDNN is in cudnn_*.{hpp,cpp} and ragged.cu
//   embedding.cu, norm.cu, elementwise.cu, loss.cu, gradient_norm.cu, adamw.cu    what they are called after
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "device/cuda/common.hpp"
#include "device/cuda/cudnn_attention.hpp"
#include "device/cuda/gemm.hpp"
#include "llampi/device/cuda_interop.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::device::cuda {

class EventPool;

class CudaDevice final : public Device, public CudaInterop {
 public:
  explicit CudaDevice(const GpuOptions& options);
  ~CudaDevice() override;

  // CudaInterop
  int gpu() const override { return options_.gpu; }
  void* native_stream(Stream stream) const override { return this->stream(stream); }
  bool is_reached(const Event& event) const override;
  void add_cast(Tensor source, Tensor destination, Accumulate accumulate, Stream stream) override;

  /// Stream::host has none.
  cudaStream_t stream(Stream stream) const;

  // Device; see llampi/device/device.hpp
  std::string describe() const override;
  Memory allocate(std::int64_t bytes) override;
  Memory allocate_host(std::int64_t bytes) override;
  void set_workspace(Tensor workspace) override;
  std::int64_t available_bytes(int local_ranks) const override;
  void upload(Tensor destination, const void* source, Stream stream) override;
  void download(void* destination, Tensor source, Stream stream) override;
  bool is_host_memory(const void* memory) const override;
  Event record(Stream stream) override;
  void wait(Stream stream, const Event& event) override;
  void wait_in_any_thread(const Event& event) const override;
  void synchronize(Stream stream) override;
  void set_progress(std::function<void()> progress) override;
  bool can_capture() const override { return true; }
  void begin_capture() override;
  Graph end_capture() override;
  void drop_capture() noexcept override;
  void replay(const Graph& graph) override;
  void begin_range(const char* name) override;
  void end_range() override;

  void embedding(const Batch& batch, Tensor table, Tensor x) override;
  void embedding_backward(const Batch& batch, Tensor dx, Tensor dtable, Accumulate accumulate) override;
  void rms_norm(Tensor x, Tensor weight, double eps, Tensor y, Tensor inverse_rms) override;
  void rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor inverse_rms, Tensor dx,
                         Accumulate accumulate_dx, Tensor dweight, Accumulate accumulate_dweight,
                         Tensor workspace) override;
  void qkv_rope(const Batch& batch, Tensor x, Tensor weight, Tensor rope, AttentionShape shape,
                Tensor qkv) override;
  void qkv_rope_backward(const Batch& batch, Tensor dqkv, Tensor x, Tensor weight, Tensor rope,
                         AttentionShape shape, Tensor dx, Tensor dweight,
                         Accumulate accumulate_dweight) override;
  void attention(const Batch& batch, std::int64_t longest, AttentionShape shape, Tensor qkv, Tensor out,
                 Tensor log_sum_exp, Tensor workspace) override;
  void attention_cached(const Batch& batch, AttentionShape shape, Tensor qkv, Tensor cache, Tensor out,
                        Tensor workspace) override;
  void attention_backward(const Batch& batch, std::int64_t longest, AttentionShape shape, Tensor dout,
                          Tensor qkv, Tensor out, Tensor log_sum_exp, Tensor dqkv, Tensor workspace) override;
  void projection_residual(Tensor x, Tensor weight, Tensor residual, Tensor y) override;
  void projection_backward(Tensor dy, Tensor x, Tensor weight, Tensor dx, Tensor dweight,
                           Accumulate accumulate_dweight) override;
  void gate_up_swiglu(Tensor x, Tensor weight, Tensor gate_up, Tensor activated) override;
  void swiglu(Tensor gate_up, Tensor activated) override;
  void gate_up_swiglu_backward(Tensor dactivated, Tensor gate_up, Tensor x, Tensor weight, Tensor dx,
                               Tensor dweight, Accumulate accumulate_dweight) override;
  void head_loss(const Batch& batch, Tensor x, Tensor weight, StepScalars* scalars,
                 Tensor workspace) override;
  void head_loss_backward(const Batch& batch, Tensor x, Tensor weight, StepScalars* scalars, Tensor dx,
                          Tensor dweight, Accumulate accumulate_dweight, Tensor workspace) override;
  void linear(Tensor x, Tensor weight, Tensor y) override;
  void add(Tensor source, Tensor destination) override;
  void copy(Tensor source, Tensor destination) override;
  void cast(Tensor source, Tensor destination) override;
  void zero(Tensor destination) override;
  void max_magnitude(Tensor gradient, std::span<const UpdateRange> ranges, Tensor maximum) override;
  void sum_squares(Tensor gradient, std::span<const UpdateRange> ranges, Tensor maximum,
                   Tensor limbs) override;
  void finish_norm(Tensor maximum, Tensor limbs, double max_norm, StepScalars* scalars) override;
  void adamw(Tensor gradient, std::span<const UpdateRange> ranges, const AdamWConstants& constants,
             const StepScalars* scalars, Tensor master, Tensor exp_avg, Tensor exp_avg_sq,
             Tensor shard) override;

  // OperationSizes: those of make_gpu_sizes()
  std::int64_t shared_workspace() const override { return sizes_->shared_workspace(); }
  bool stages_inputs() const override { return sizes_->stages_inputs(); }
  std::int64_t attention_workspace(AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                   DType dtype) const override {
    return sizes_->attention_workspace(shape, tokens, longest, dtype);
  }
  std::int64_t attention_backward_workspace(AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                            DType dtype) const override {
    return sizes_->attention_backward_workspace(shape, tokens, longest, dtype);
  }
  std::int64_t rms_norm_backward_workspace(std::int64_t tokens, std::int64_t hidden,
                                           DType dtype) const override {
    return sizes_->rms_norm_backward_workspace(tokens, hidden, dtype);
  }
  std::int64_t head_loss_workspace(std::int64_t tokens, std::int64_t hidden, std::int64_t vocabulary,
                                   DType dtype) const override {
    return sizes_->head_loss_workspace(tokens, hidden, vocabulary, dtype);
  }

 private:
  cudaStream_t compute() const { return stream(Stream::compute); }
  /// Polls `query` until it is done, and lets communication advance meanwhile.
  void poll(const std::function<cudaError_t()>& query, const char* what) const;
  /// Stream::compute waits for all others.
  void join_streams();
  /// After each operation, as all devices do: communication may advance.
  void progress() const {
    if (progress_) progress_();
  }

  GpuOptions options_;
  cudaDeviceProp properties_{};
  std::unique_ptr<OperationSizes> sizes_ = make_gpu_sizes();
  std::array<cudaStream_t, kStreams> streams_{};
  std::shared_ptr<EventPool> events_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<CudnnAttention> cudnn_;  ///< null: own attention
  Tensor workspace_;                       ///< shared; cuBLASLt's
  std::function<void()> progress_;
};

}  // namespace llampi::device::cuda
