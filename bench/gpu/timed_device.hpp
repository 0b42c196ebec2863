// SPDX-License-Identifier: Apache-2.0
// A device that times each operation of another one.
#pragma once

#include <map>
#include <string>

#include "llampi/device/device.hpp"

namespace llampi::bench {

/// What was done under one name, since reset().
struct OperationTime {
  double seconds = 0;
  double flops = 0;  ///< of matrix products and attention (causal: half); 0 for all else
  std::int64_t calls = 0;
};

/// Forwards every call. The host waits before and after each operation, so that nothing overlaps and the
/// launch of a kernel counts: the times add up to more than a step takes that runs freely.
class TimedDevice final : public device::Device {
 public:
  explicit TimedDevice(device::Device& device) : device_(device) {}

  void reset() { times_.clear(); }
  /// By operation; those on a weight, by its shape too: "projection_residual 4096x14336".
  const std::map<std::string, OperationTime>& times() const { return times_; }

  std::int64_t shared_workspace() const override;
  std::int64_t attention_workspace(device::AttentionShape shape, std::int64_t tokens, std::int64_t longest,
                                   DType dtype) const override;
  std::int64_t attention_backward_workspace(device::AttentionShape shape, std::int64_t tokens,
                                            std::int64_t longest, DType dtype) const override;
  std::int64_t rms_norm_backward_workspace(std::int64_t tokens, std::int64_t hidden,
                                           DType dtype) const override;
  std::int64_t head_loss_workspace(std::int64_t tokens, std::int64_t hidden, std::int64_t vocabulary,
                                   DType dtype) const override;

  std::string describe() const override;
  device::Memory allocate(std::int64_t bytes) override;
  void set_workspace(Tensor workspace) override;
  std::int64_t available_bytes(int local_ranks) const override;
  device::Memory allocate_host(std::int64_t bytes) override;
  void upload(Tensor destination, const void* source, device::Stream stream) override;
  void download(void* destination, Tensor source, device::Stream stream) override;
  bool is_host_memory(const void* memory) const override { return device_.is_host_memory(memory); }
  device::Event record(device::Stream stream) override;
  void wait(device::Stream stream, const device::Event& event) override;
  void wait_in_any_thread(const device::Event& event) const override { device_.wait_in_any_thread(event); }
  void synchronize(device::Stream stream) override;
  void set_progress(std::function<void()> progress) override;

  void embedding(const device::Batch& batch, Tensor table, Tensor x) override;
  void embedding_backward(const device::Batch& batch, Tensor dx, Tensor dtable,
                          device::Accumulate accumulate) override;
  void rms_norm(Tensor x, Tensor weight, double eps, Tensor y, Tensor inverse_rms) override;
  void rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor inverse_rms, Tensor dx,
                         device::Accumulate accumulate_dx, Tensor dweight,
                         device::Accumulate accumulate_dweight, Tensor workspace) override;
  void qkv_rope(const device::Batch& batch, Tensor x, Tensor weight, Tensor rope,
                device::AttentionShape shape, Tensor qkv) override;
  void qkv_rope_backward(const device::Batch& batch, Tensor dqkv, Tensor x, Tensor weight, Tensor rope,
                         device::AttentionShape shape, Tensor dx, Tensor dweight,
                         device::Accumulate accumulate_dweight) override;
  void attention(const device::Batch& batch, std::int64_t longest, device::AttentionShape shape, Tensor qkv,
                 Tensor out, Tensor log_sum_exp, Tensor workspace) override;
  void attention_cached(const device::Batch& batch, device::AttentionShape shape, Tensor qkv, Tensor cache,
                        Tensor out, Tensor workspace) override;
  void attention_backward(const device::Batch& batch, std::int64_t longest, device::AttentionShape shape,
                          Tensor dout, Tensor qkv, Tensor out, Tensor log_sum_exp, Tensor dqkv,
                          Tensor workspace) override;
  void projection_residual(Tensor x, Tensor weight, Tensor residual, Tensor y) override;
  void projection_backward(Tensor dy, Tensor x, Tensor weight, Tensor dx, Tensor dweight,
                           device::Accumulate accumulate_dweight) override;
  void gate_up_swiglu(Tensor x, Tensor weight, Tensor gate_up, Tensor activated) override;
  void swiglu(Tensor gate_up, Tensor activated) override;
  void gate_up_swiglu_backward(Tensor dactivated, Tensor gate_up, Tensor x, Tensor weight, Tensor dx,
                               Tensor dweight, device::Accumulate accumulate_dweight) override;
  void head_loss(const device::Batch& batch, Tensor x, Tensor weight, device::StepScalars* scalars,
                 Tensor workspace) override;
  void head_loss_backward(const device::Batch& batch, Tensor x, Tensor weight, device::StepScalars* scalars,
                          Tensor dx, Tensor dweight, device::Accumulate accumulate_dweight,
                          Tensor workspace) override;
  void linear(Tensor x, Tensor weight, Tensor y) override;
  void add(Tensor source, Tensor destination) override;
  void copy(Tensor source, Tensor destination) override;
  void cast(Tensor source, Tensor destination) override;
  void zero(Tensor destination) override;
  void max_magnitude(Tensor gradient, std::span<const device::UpdateRange> ranges, Tensor maximum) override;
  void sum_squares(Tensor gradient, std::span<const device::UpdateRange> ranges, Tensor maximum,
                   Tensor limbs) override;
  void finish_norm(Tensor maximum, Tensor limbs, double max_norm, device::StepScalars* scalars) override;
  void adamw(Tensor gradient, std::span<const device::UpdateRange> ranges,
             const device::AdamWConstants& constants, const device::StepScalars* scalars, Tensor master,
             Tensor exp_avg, Tensor exp_avg_sq, Tensor shard) override;

 private:
  template <class Work>
  void time(const std::string& name, double flops, device::Stream stream, const Work& work);
  template <class Work>
  void time(const std::string& name, double flops, const Work& work) {
    time(name, flops, device::Stream::compute, work);
  }

  device::Device& device_;
  std::map<std::string, OperationTime> times_;
};

}  // namespace llampi::bench
