// SPDX-License-Identifier: Apache-2.0
#include "gpu/timed_device.hpp"

#include "gpu/clock.hpp"

namespace llampi::bench {
namespace {

std::string on_weight(const char* name, const Tensor& weight) {
  return fmt::format("{} {}x{}", name, weight.rows, weight.cols);
}

/// Of `products` products with the weight: one forward, two backward (one if the weight is frozen).
double product_flops(const Tensor& x, const Tensor& weight, int products) {
  return 2.0 * products * static_cast<double>(x.rows) * static_cast<double>(weight.elements());
}
int backward_products(const Tensor& dweight) { return dweight ? 2 : 1; }

/// Two products forward, of which the causal half counts. Backward has five: the scores once more, and the
/// gradients of the probabilities, queries, keys and values.
double attention_flops(const Tensor& qkv, std::int64_t longest, device::AttentionShape shape, int products) {
  return 2.0 * products * static_cast<double>(qkv.rows) * static_cast<double>(longest) *
         static_cast<double>(shape.query_cols()) / 2;
}

}  // namespace

template <class Work>
void TimedDevice::time(const std::string& name, double flops, device::Stream stream, const Work& work) {
  device_.synchronize(device::Stream::compute);
  if (stream != device::Stream::compute) device_.synchronize(stream);
  const double begin = now();
  work();
  device_.synchronize(stream);
  auto& entry = times_[name];
  entry.seconds += now() - begin;
  entry.flops += flops;
  ++entry.calls;
}

// ---- memory and order ----

std::int64_t TimedDevice::shared_workspace() const { return device_.shared_workspace(); }

std::int64_t TimedDevice::attention_workspace(device::AttentionShape shape, std::int64_t tokens,
                                              std::int64_t longest, DType dtype) const {
  return device_.attention_workspace(shape, tokens, longest, dtype);
}

std::int64_t TimedDevice::attention_backward_workspace(device::AttentionShape shape, std::int64_t tokens,
                                                       std::int64_t longest, DType dtype) const {
  return device_.attention_backward_workspace(shape, tokens, longest, dtype);
}

std::int64_t TimedDevice::rms_norm_backward_workspace(std::int64_t tokens, std::int64_t hidden,
                                                      DType dtype) const {
  return device_.rms_norm_backward_workspace(tokens, hidden, dtype);
}

std::int64_t TimedDevice::head_loss_workspace(std::int64_t tokens, std::int64_t hidden,
                                              std::int64_t vocabulary, DType dtype) const {
  return device_.head_loss_workspace(tokens, hidden, vocabulary, dtype);
}

std::string TimedDevice::describe() const { return device_.describe(); }
device::Memory TimedDevice::allocate(std::int64_t bytes) { return device_.allocate(bytes); }
void TimedDevice::set_workspace(Tensor workspace) { device_.set_workspace(workspace); }
std::int64_t TimedDevice::available_bytes(int local_ranks) const {
  return device_.available_bytes(local_ranks);
}
device::Memory TimedDevice::allocate_host(std::int64_t bytes) { return device_.allocate_host(bytes); }

void TimedDevice::upload(Tensor destination, const void* source, device::Stream stream) {
  time("upload", 0, stream, [&] { device_.upload(destination, source, stream); });
}

void TimedDevice::download(void* destination, Tensor source, device::Stream stream) {
  time("download", 0, stream, [&] { device_.download(destination, source, stream); });
}

device::Event TimedDevice::record(device::Stream stream) { return device_.record(stream); }
void TimedDevice::wait(device::Stream stream, const device::Event& event) { device_.wait(stream, event); }
void TimedDevice::synchronize(device::Stream stream) { device_.synchronize(stream); }
void TimedDevice::set_progress(std::function<void()> progress) { device_.set_progress(std::move(progress)); }

// ---- operations ----

void TimedDevice::embedding(const device::Batch& batch, Tensor table, Tensor x) {
  time("embedding", 0, [&] { device_.embedding(batch, table, x); });
}

void TimedDevice::embedding_backward(const device::Batch& batch, Tensor dx, Tensor dtable,
                                     device::Accumulate accumulate) {
  time("embedding_backward", 0, [&] { device_.embedding_backward(batch, dx, dtable, accumulate); });
}

void TimedDevice::rms_norm(Tensor x, Tensor weight, double eps, Tensor y, Tensor inverse_rms) {
  time("rms_norm", 0, [&] { device_.rms_norm(x, weight, eps, y, inverse_rms); });
}

void TimedDevice::rms_norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor inverse_rms, Tensor dx,
                                    device::Accumulate accumulate_dx, Tensor dweight,
                                    device::Accumulate accumulate_dweight, Tensor workspace) {
  time("rms_norm_backward", 0, [&] {
    device_.rms_norm_backward(dy, x, weight, inverse_rms, dx, accumulate_dx, dweight, accumulate_dweight,
                              workspace);
  });
}

void TimedDevice::qkv_rope(const device::Batch& batch, Tensor x, Tensor weight, Tensor rope,
                           device::AttentionShape shape, Tensor qkv) {
  time(on_weight("qkv_rope", weight), product_flops(x, weight, 1),
       [&] { device_.qkv_rope(batch, x, weight, rope, shape, qkv); });
}

void TimedDevice::qkv_rope_backward(const device::Batch& batch, Tensor dqkv, Tensor x, Tensor weight,
                                    Tensor rope, device::AttentionShape shape, Tensor dx, Tensor dweight,
                                    device::Accumulate accumulate_dweight) {
  time(on_weight("qkv_rope_backward", weight), product_flops(x, weight, backward_products(dweight)), [&] {
    device_.qkv_rope_backward(batch, dqkv, x, weight, rope, shape, dx, dweight, accumulate_dweight);
  });
}

void TimedDevice::attention(const device::Batch& batch, std::int64_t longest, device::AttentionShape shape,
                            Tensor qkv, Tensor out, Tensor log_sum_exp, Tensor workspace) {
  time("attention", attention_flops(qkv, longest, shape, 2),
       [&] { device_.attention(batch, longest, shape, qkv, out, log_sum_exp, workspace); });
}

void TimedDevice::attention_cached(const device::Batch& batch, device::AttentionShape shape, Tensor qkv,
                                   Tensor cache, Tensor out, Tensor workspace) {
  time("attention_cached", 0, [&] { device_.attention_cached(batch, shape, qkv, cache, out, workspace); });
}

void TimedDevice::attention_backward(const device::Batch& batch, std::int64_t longest,
                                     device::AttentionShape shape, Tensor dout, Tensor qkv, Tensor out,
                                     Tensor log_sum_exp, Tensor dqkv, Tensor workspace) {
  time("attention_backward", attention_flops(qkv, longest, shape, 5), [&] {
    device_.attention_backward(batch, longest, shape, dout, qkv, out, log_sum_exp, dqkv, workspace);
  });
}

void TimedDevice::projection_residual(Tensor x, Tensor weight, Tensor residual, Tensor y) {
  time(on_weight("projection_residual", weight), product_flops(x, weight, 1),
       [&] { device_.projection_residual(x, weight, residual, y); });
}

void TimedDevice::projection_backward(Tensor dy, Tensor x, Tensor weight, Tensor dx, Tensor dweight,
                                      device::Accumulate accumulate_dweight) {
  time(on_weight("projection_backward", weight), product_flops(x, weight, backward_products(dweight)),
       [&] { device_.projection_backward(dy, x, weight, dx, dweight, accumulate_dweight); });
}

void TimedDevice::gate_up_swiglu(Tensor x, Tensor weight, Tensor gate_up, Tensor activated) {
  time(on_weight("gate_up_swiglu", weight), product_flops(x, weight, 1),
       [&] { device_.gate_up_swiglu(x, weight, gate_up, activated); });
}

void TimedDevice::swiglu(Tensor gate_up, Tensor activated) {
  time("swiglu", 0, [&] { device_.swiglu(gate_up, activated); });
}

void TimedDevice::gate_up_swiglu_backward(Tensor dactivated, Tensor gate_up, Tensor x, Tensor weight,
                                          Tensor dx, Tensor dweight, device::Accumulate accumulate_dweight) {
  time(on_weight("gate_up_swiglu_backward", weight), product_flops(x, weight, backward_products(dweight)),
       [&] {
         device_.gate_up_swiglu_backward(dactivated, gate_up, x, weight, dx, dweight, accumulate_dweight);
       });
}

void TimedDevice::head_loss(const device::Batch& batch, Tensor x, Tensor weight, device::StepScalars* scalars,
                            Tensor workspace) {
  time(on_weight("head_loss", weight), product_flops(x, weight, 1),
       [&] { device_.head_loss(batch, x, weight, scalars, workspace); });
}

void TimedDevice::head_loss_backward(const device::Batch& batch, Tensor x, Tensor weight,
                                     device::StepScalars* scalars, Tensor dx, Tensor dweight,
                                     device::Accumulate accumulate_dweight, Tensor workspace) {
  time(on_weight("head_loss_backward", weight), product_flops(x, weight, 1 + backward_products(dweight)),
       [&] {
         device_.head_loss_backward(batch, x, weight, scalars, dx, dweight, accumulate_dweight, workspace);
       });
}

void TimedDevice::linear(Tensor x, Tensor weight, Tensor y) {
  time(on_weight("linear", weight), product_flops(x, weight, 1), [&] { device_.linear(x, weight, y); });
}

void TimedDevice::add(Tensor source, Tensor destination) {
  time("add", 0, [&] { device_.add(source, destination); });
}
void TimedDevice::copy(Tensor source, Tensor destination) {
  time("copy", 0, [&] { device_.copy(source, destination); });
}
void TimedDevice::cast(Tensor source, Tensor destination) {
  time("cast", 0, [&] { device_.cast(source, destination); });
}
void TimedDevice::zero(Tensor destination) {
  time("zero", 0, [&] { device_.zero(destination); });
}

void TimedDevice::max_magnitude(Tensor gradient, std::span<const device::UpdateRange> ranges,
                                Tensor maximum) {
  time("max_magnitude", 0, [&] { device_.max_magnitude(gradient, ranges, maximum); });
}

void TimedDevice::sum_squares(Tensor gradient, std::span<const device::UpdateRange> ranges, Tensor maximum,
                              Tensor limbs) {
  time("sum_squares", 0, [&] { device_.sum_squares(gradient, ranges, maximum, limbs); });
}

void TimedDevice::finish_norm(Tensor maximum, Tensor limbs, double max_norm, device::StepScalars* scalars) {
  time("finish_norm", 0, [&] { device_.finish_norm(maximum, limbs, max_norm, scalars); });
}

void TimedDevice::adamw(Tensor gradient, std::span<const device::UpdateRange> ranges,
                        const device::AdamWConstants& constants, const device::StepScalars* scalars,
                        Tensor master, Tensor exp_avg, Tensor exp_avg_sq, Tensor shard) {
  time("adamw", 0,
       [&] { device_.adamw(gradient, ranges, constants, scalars, master, exp_avg, exp_avg_sq, shard); });
}

}  // namespace llampi::bench
