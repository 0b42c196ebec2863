// SPDX-License-Identifier: Apache-2.0
// The CUDA device: one GPU of this process. Host code only; kernels are in the .cu files beside it.
//
//   cuda_device.cpp   memory, streams, events
//   copies.cu         copies, casts, sums
//   tree_sum.cu       sums over ranks
//   capture.cpp       capture of work into CUDA graphs, ranges for profilers
//   issue.cpp         from an operation to what computes it: an overload of execute() in the files below
//   products.cu       the operations around matrix products, for which gemm.{hpp,cpp} asks cublaslt.cpp
//   low_rank.cu       low-rank adapters beside these products
//   attention*.cu     own attention; that of cuDNN is in cudnn_*.{hpp,cpp} and ragged.cu
//   fp8.cu            what goes before products in 8 bits
//   fp8_blocks.cu     the same with scales of blocks and tiles
//   qkv_transform.cu  a bias or norms of heads with RoPE
//   embedding.cu, norm.cu, elementwise.cu, loss.cu, gradient_norm.cu, adamw.cu    what they are called after
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>

#include "device/cuda/common.hpp"
#include "device/cuda/cudnn_attention.hpp"
#include "device/cuda/gemm.hpp"
#include "llampi/device/cuda_interop.hpp"
#include "llampi/device/device.hpp"
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
  void sum_parts(const RankParts& parts, Tensor sum, Accumulate accumulate, Stream stream) override;

  /// Stream::host has none.
  cudaStream_t stream(Stream stream) const;

  std::string describe() const override;
  Autotuner* autotuner() override { return gemm_.get(); }
  Memory allocate(std::int64_t bytes) override;
  Memory allocate_host(std::int64_t bytes) override;
  void set_workspace(Tensor workspace) override;
  std::int64_t available_bytes(int local_ranks) const override;
  void upload(Tensor destination, const void* source, Stream stream) override;
  void download(void* destination, Tensor source, Stream stream) override;
  bool is_host_memory(const void* memory) const override;
  Event record(Stream stream) override;
  Event record_timed(Stream stream) override;
  double seconds_between(const Event& begin, const Event& end) const override;
  bool runs_beside_host() const override { return true; }
  void wait(Stream stream, const Event& event) override;
  void wait_in_any_thread(const Event& event) const override;
  void synchronize(Stream stream) override;
  void set_progress(std::function<void()> progress) override;
  bool can_capture() const override { return true; }
  void begin_capture() override;
  Graph end_capture() override;
  bool instantiate(Graph& graph) override;
  void drop_capture() noexcept override;
  void replay(const Graph& graph) override;
  void begin_range(const char* name) override;
  void end_range() override;

  const OperationSizes& sizes() const override { return *sizes_; }
  void prepare(const Operation& operation) override;

  void execute(const op::Embedding& o);
  void execute(const op::EmbeddingBackward& o);
  void execute(const op::RmsNorm& o);
  void execute(const op::RmsNormBackward& o);
  void execute(const op::QkvRope& o);
  void execute(const op::Attention& o);
  void execute(const op::AttentionBackward& o);
  void execute(const op::CachedAttention& o);
  void execute(const op::ProjectionResidual& o);
  void execute(const op::InputGradient& o);
  void execute(const op::WeightGradient& o);
  void execute(const op::GateUpSwiglu& o);
  void execute(const op::Swiglu& o);
  void execute(const op::SwigluBackward& o);
  void execute(const op::Rope& o);
  void execute(const op::Fp8Maximum& o);
  void execute(const op::Fp8Scales& o);
  void execute(const op::Fp8Cast& o);
  void execute(const op::RmsNormCast& o);
  void execute(const op::SwigluBackwardCast& o);
  void execute(const op::RopeBackwardCast& o);
  void execute(const op::Fp8BlockMaximum& o);
  void execute(const op::Fp8BlockScales& o);
  void execute(const op::Fp8BlockCast& o);
  void execute(const op::Fp8TileCast& o);
  void execute(const op::Fp8Transpose& o);
  void execute(const op::Fp8Product& o);
  void execute(const op::LinearCrossEntropy& o);
  void execute(const op::LinearCrossEntropyBackward& o);
  void execute(const op::LowRankDown& o);
  void execute(const op::Linear& o);
  void execute(const op::Add& o);
  void execute(const op::Copy& o);
  void execute(const op::Cast& o);
  void execute(const op::Zero& o);
  void execute(const op::RandomNormal& o);
  void execute(const op::SumSquares& o);
  void execute(const op::FinishNorm& o);
  void execute(const op::AdamW& o);

 protected:
  void issue(const Operation& operation) override;

 private:
  cudaStream_t compute() const { return stream(Stream::compute); }
  /// Whether cuDNN does this direction of attention, for which its graphs are then built.
  template <class Attention>
  bool cudnn_supports(const Attention& o) {
    return cudnn_ && options_.attention != GpuAttention::native && cudnn_->supports(o);
  }
  /// As CudnnAttention says. @throws Error if there are others, and cuDNN was demanded
  std::int64_t longest_with_room(const op::AttentionBackward& o) const;
  /// By native kernels, of documents of more than `not_asked` tokens at least.
  void native_attention_backward(const op::AttentionBackward& o, std::int64_t not_asked);
  Event record(Stream stream, const std::shared_ptr<EventPool>& pool);
  /// What the products above have of their adapters, after the product itself; low_rank.hpp.
  void add_adapters(std::span<const LowRank> adapters, const Tensor& x, const Tensor& y);
  void adapter_input_gradients(const op::InputGradient& o);
  void adapter_weight_gradients(const op::WeightGradient& o);
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
  std::shared_ptr<EventPool> events_, timed_events_;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<CudnnAttention> cudnn_;  ///< null: own attention
  Tensor workspace_;                       ///< shared; cuBLASLt's
  std::function<void()> progress_;
};

}  // namespace llampi::device::cuda
