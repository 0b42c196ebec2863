// SPDX-License-Identifier: Apache-2.0
// Products, attention and memory-bound operations alone, at the shapes of the model and others.
#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/philox.hpp"
#include "measure/bench.hpp"

namespace llampi::measure {
namespace {

namespace op = device::op;
using Index = std::int64_t;

constexpr int kFewestRuns = 3, kMostRuns = 1000;
constexpr Index kMemoryBytes = Index{64} << 20;  // more than caches hold

/// Memory that is filled with numbers like those of a model.
class Operands {
 public:
  explicit Operands(device::Device& device) : device_(device) {}
  Tensor zeros(Index rows, Index cols, DType dtype) {
    memory_.push_back(device_.allocate(std::max<Index>(rows * cols, 1) * size_of(dtype)));
    return {memory_.back().data(), dtype, rows, cols};
  }
  Tensor random(Index rows, Index cols, DType dtype) {
    const Tensor tensor = zeros(rows, cols, dtype);
    device_.run(op::RandomNormal{.stream = RandomStream(1, std::to_string(memory_.size())),
                                 .first = 0,
                                 .standard_deviation = 0.05,
                                 .out = tensor.slice(0, tensor.elements())});
    return tensor;
  }
  Tensor workspace(Index bytes) { return zeros(1, (bytes + 3) / 4, DType::float32); }
  /// `value` of each index.
  Tensor integers(Index count, const std::function<Index(Index)>& value) {
    const Tensor tensor = zeros(1, count, DType::int32);
    std::vector<std::int32_t> values;
    for (Index i = 0; i < count; ++i) values.push_back(static_cast<std::int32_t>(value(i)));
    device_.upload(tensor, values.data(), device::Stream::compute);
    device_.synchronize(device::Stream::compute);
    return tensor;
  }

 private:
  device::Device& device_;
  std::vector<device::Memory> memory_;
};

class SingleOperations {
 public:
  explicit SingleOperations(const Bench& bench) : bench_(bench), device_(bench.compute.device()) {}

  void product(DType dtype, Index m, Index n, Index k) {
    Operands operands(device_);
    measure("product", fmt::format("{} x {} x {} {}", m, n, k, to_string(dtype)),
            op::Linear{.x = operands.random(m, k, dtype),
                       .weight = operands.random(n, k, dtype),
                       .y = operands.zeros(m, n, dtype)});
  }

  void attention(DType dtype, device::AttentionShape shape, Index tokens, Index length, Index attention_room,
                 const std::string& what = {}) {
    Operands operands(device_);
    const Index documents = tokens / length;
    const device::Documents of{.cu_seqlens = operands.integers(
                                   tokens + 1, [&](Index i) { return i <= documents ? i * length : -1; }),
                               .positions = operands.integers(tokens, [&](Index i) { return i % length; }),
                               .count = documents,
                               .max_seqlen = length};
    const Tensor qkv = operands.random(tokens, shape.qkv_cols(), dtype),
                 out = operands.zeros(tokens, shape.query_cols(), dtype),
                 sums = operands.zeros(shape.query_heads, tokens, DType::float32);
    const auto& sizes = device_.sizes();
    const Tensor workspace = operands.workspace(
        std::max(sizes.attention_workspace(shape, tokens, length, dtype),
                 sizes.attention_backward_workspace(shape, tokens, length, dtype, attention_room)));
    const std::string name = fmt::format("{} tokens, documents of {}{}{}, {}", tokens, length,
                                         shape.window > 0 ? fmt::format(", window of {}", shape.window) : "",
                                         what, to_string(dtype));
    measure("attention", "forward, " + name,
            op::Attention{.documents = of,
                          .shape = shape,
                          .qkv = qkv,
                          .out = out,
                          .log_sum_exp = sums,
                          .workspace = workspace});
    measure("attention", "backward, " + name,
            op::AttentionBackward{.documents = of,
                                  .shape = shape,
                                  .dout = operands.random(tokens, shape.query_cols(), dtype),
                                  .qkv = qkv,
                                  .out = out,
                                  .log_sum_exp = sums,
                                  .dqkv = operands.zeros(tokens, shape.qkv_cols(), dtype),
                                  .workspace = workspace,
                                  .attention_room = attention_room});
  }

  void memory(DType dtype, Index rows, Index cols) {
    Operands operands(device_);
    const Tensor x = operands.random(rows, cols, dtype), y = operands.zeros(rows, cols, dtype);
    measure("memory", fmt::format("rms_norm {} x {}", rows, cols),
            op::RmsNorm{.x = x,
                        .weight = operands.random(1, cols, dtype),
                        .eps = 1e-5,
                        .y = y,
                        .inverse_rms = operands.zeros(1, rows, DType::float32)});
    measure("memory", fmt::format("add {} x {}", rows, cols), op::Add{.source = x, .destination = y}, true);
    measure("memory", fmt::format("copy {} x {}", rows, cols), op::Copy{.source = x, .destination = y}, true);
  }

 private:
  /// @param of_arrays what a step does with parameters and gradients
  void measure(const char* group, const std::string& name, const device::Operation& operation,
               bool of_arrays = false) {
    const auto run = [&](int times) {
      const double begin = steady_seconds();
      for (int i = 0; i < times; ++i) device_.run(operation);
      device_.synchronize(device::Stream::compute);
      return (steady_seconds() - begin) / times;
    };
    run(1);
    bench_.world.barrier();
    // A GPU is given enough at a time that starting it does not count.
    const double one = run(1);
    const int together =
        device_.runs_beside_host() ? std::clamp(static_cast<int>(2e-3 / std::max(one, 1e-6)), 1, 50) : 1;
    double shortest = one, total = 0;
    for (int i = 0; i < kFewestRuns || (total < bench_.settings.seconds && i < kMostRuns); ++i) {
      const double seconds = run(together);
      shortest = std::min(shortest, seconds);
      total += seconds * together;
    }
    Row row{
        .group = group, .name = name, .seconds = comm::max_over_ranks(bench_.world, shortest), .unit = {}};
    row.amounts = plan::amounts_of(operation, bench_.attention);
    if (of_arrays) std::swap(row.amounts[plan::Term::array_bytes], row.amounts[plan::Term::memory_bytes]);
    using plan::Term;
    double operations = 0;
    for (const Term term : {Term::product_float32, Term::product_half, Term::attention_forward,
                            Term::attention_any_order, Term::attention_deterministic, Term::attention_native})
      operations += row.amounts[term];
    const double bytes = row.amounts[Term::memory_bytes] + row.amounts[Term::array_bytes];
    row.rate = operations > 0 ? operations / row.seconds * 1e-12 : bytes / row.seconds * 1e-9;
    row.unit = operations > 0 ? "TFLOP/s" : "GB/s";
    bench_.rows.push_back(std::move(row));
  }

  const Bench& bench_;
  device::Device& device_;
};

/// Of the first attention layer; none without one.
std::optional<device::AttentionShape> attention_shape(const std::vector<model::LayerSpec>& specs) {
  const auto first =
      std::ranges::find_if(specs, [](const model::LayerSpec& spec) { return spec.attention.has_value(); });
  return first == specs.end() ? std::nullopt : first->attention;
}

}  // namespace

void measure_operations(const Bench& bench) {
  const train::CompiledRun run = train::compile_run(bench.config, bench.shape);
  const DType dtype = run.options.precision.compute;
  const Index tokens = run.options.batch.tokens(), length = run.options.batch.seq_len;
  device::Device& device = bench.compute.device();
  const device::Memory shared = device.allocate(std::max<Index>(device.sizes().shared_workspace(), 4));
  device.set_workspace({shared.data(), DType::float32, 1, shared.bytes() / 4});
  SingleOperations single(bench);
  // The matrices of the model, each shape once, and square ones.
  std::vector<std::pair<Index, Index>> shapes;
  for (const auto& parameter : run.model->parameters()) {
    if (parameter.shape.size() == 2) shapes.emplace_back(parameter.shape[0], parameter.shape[1]);
  }
  std::ranges::sort(shapes);
  shapes.erase(std::unique(shapes.begin(), shapes.end()), shapes.end());
  for (const auto& [out, in] : shapes) single.product(dtype, std::min<Index>(tokens, 2048), out, in);
  const Index largest = bench.compute.on_gpu() ? 8192 : 1024;
  for (Index side = bench.compute.on_gpu() ? 512 : 64; side <= largest; side *= 2)
    single.product(dtype, side, side, side);
  if (const auto attention = attention_shape(run.compiled.specs)) {
    const Index attention_room = run.options.batch.attention_room;
    for (Index l = std::max<Index>(length / 8, 16); l <= length; l *= 2) {
      if (tokens % l == 0) single.attention(dtype, *attention, tokens, l, attention_room);
    }
    // Without another size of heads, what depends on it cannot be told from what does not.
    device::AttentionShape other = *attention;
    other.head_dim = attention->head_dim == 64 ? 128 : 64;
    if (bench.compute.on_gpu() && tokens % length == 0)
      single.attention(dtype, other, tokens, length, attention_room,
                       fmt::format(", heads of {}", other.head_dim));
  }
  const Index cols = shapes.front().second;
  single.memory(dtype, kMemoryBytes / size_of(dtype) / cols, cols);
}

}  // namespace llampi::measure
