// SPDX-License-Identifier: Apache-2.0
#include "gpu/products.hpp"

#include <algorithm>
#include <cmath>

#include "device/cuda/loss_sizes.hpp"
#include "gpu/fp8.hpp"
#include "gpu/timing.hpp"
#include "llampi/core/integers.hpp"
#include "llampi/device/host_batch.hpp"

namespace llampi::bench {
namespace {

/// Weight gradients are overwritten by the first micro-batch (or chunk), added to by the others.
void measure(device::Device& device, const Noise& noise, DType dtype, DType gradient, int writes,
             ProductTime& product) {
  const Matrix x(device, &noise, dtype, product.rows, product.in);
  const Matrix weight(device, &noise, dtype, product.out, product.in);
  const Matrix y(device, &noise, dtype, product.rows, product.out);
  const Matrix dx(device, nullptr, dtype, product.rows, product.in);
  const Matrix dweight(device, nullptr, gradient, product.out, product.in);
  product.backward_seconds = time_call(device, [&](int call) {
    device.run(device::op::InputGradient{.dy = y.view, .weight = weight.view, .dx = dx.view});
    device.run(device::op::WeightGradient{
        .dy = y.view,
        .x = x.view,
        .dweight = dweight.view,
        .accumulate_dweight = call % writes == 0 ? Accumulate::no : Accumulate::yes});
  });
  product.forward_seconds = time_call(
      device, [&](int) { device.run(device::op::Linear{.x = x.view, .weight = weight.view, .y = y.view}); });
}

/// As many as tokens have a label, rounded up as a step does.
std::int64_t rows_with_logits(const Options& o) {
  device::HostBatch batch(o.tokens);
  batch.valid_labels = std::llround(o.labels * static_cast<double>(o.tokens));
  return batch.counts().valid_labels;
}

}  // namespace

double ProductTime::forward_flops() const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in);
}

double Limits::product_seconds() const {
  double sum = 0;
  for (const auto& product : products) sum += product.seconds_per_step();
  return sum;
}

double Limits::product_flops() const {
  double sum = 0;
  for (const auto& product : products) sum += product.flops_per_step();
  return sum / product_seconds();
}

Limits measure_limits(device::Device& device, DType dtype, const Options& o, std::int64_t layers,
                      std::int64_t logits_bytes, bool fp8, bool fp8_blocks) {
  const std::int64_t workspace_bytes = device.sizes().shared_workspace();
  const device::Memory workspace = device.allocate(workspace_bytes);
  if (workspace_bytes > 0) device.set_workspace({workspace.data(), DType::int32, 1, workspace_bytes / 4});
  const Noise noise(device, dtype);

  const std::int64_t heads = o.query_heads + 2 * o.key_value_heads, head_dim = o.hidden / o.query_heads;
  const std::int64_t calls = layers * o.micro_batches;
  // The head runs in chunks, or in one where the logits have room.
  const std::int64_t rows = rows_with_logits(o);
  const std::int64_t chunk =
      std::min(rows, device::cuda::head_rows(o.tokens, o.vocabulary, dtype, logits_bytes));
  const std::int64_t chunks = ceil_div(rows, chunk);
  // CPUs compute gradients in float32 and round their sums.
  const DType gradient = dtype == DType::float32 ? dtype : dtype_of_word(o.gradient);
  Limits limits;
  limits.products = {{"qkv", o.tokens, heads * head_dim, o.hidden, calls},
                     {"output", o.tokens, o.hidden, o.hidden, calls},
                     {"gate_up", o.tokens, 2 * o.feed_forward, o.hidden, calls},
                     {"down", o.tokens, o.hidden, o.feed_forward, calls},
                     {"head", chunk, o.vocabulary, o.hidden, chunks * o.micro_batches}};
  for (auto& product : limits.products) {
    const bool is_head = product.name == "head";
    const auto writes = is_head ? chunks * o.micro_batches : o.micro_batches;
    measure(device, noise, dtype, gradient, static_cast<int>(writes), product);
  }
  const Matrix a(device, &noise, dtype, o.square, o.square), b(device, &noise, dtype, o.square, o.square);
  const Matrix c(device, nullptr, dtype, o.square, o.square);
  const auto side = static_cast<double>(o.square);
  limits.square_flops = 2 * side * side * side / time_call(device, [&](int) {
                          device.run(device::op::Linear{.x = a.view, .weight = b.view, .y = c.view});
                        });
  const Matrix from(device, nullptr, DType::float32, o.square, o.square);
  const Matrix to(device, nullptr, DType::float32, o.square, o.square);
  limits.copy_bandwidth = 2.0 * static_cast<double>(from.view.bytes()) / time_call(device, [&](int) {
                            device.run(device::op::Copy{.source = from.view, .destination = to.view});
                          });
  if (fp8)
    limits.fp8 =
        std::make_shared<Fp8Limits>(measure_fp8(device, noise, dtype, o, limits.products, fp8_blocks));
  device.synchronize(device::Stream::compute);
  return limits;
}

}  // namespace llampi::bench
