// SPDX-License-Identifier: Apache-2.0
#include "llampi/model/eager_runner.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "llampi/core/integers.hpp"
#include "llampi/device/fp8_scaling.hpp"
#include "llampi/model/layer_support.hpp"

namespace llampi::model {
namespace {

/// In device memory, as a [1, 2] float64.
struct LossScalars {
  double inverse_tokens = 0;
  double loss_sum = 0;
};

}  // namespace

/// The views that a layer's context points to, and the scratch memory of one call.
struct EagerRunner::Operands {
  std::vector<Tensor> parameters, gradients, scratch;
  std::vector<Fp8Weight> fp8_weights;
  std::vector<Accumulate> accumulate;
  std::vector<device::Memory> memory;
  Tensor gradient_maximum;
};

EagerRunner::EagerRunner(const Model& model, device::Device& device, BatchShape shape, DType compute,
                         Unwritten unwritten)
    : model_(model), device_(device), shape_(shape), compute_(compute), unwritten_(unwritten) {
  if (const std::int64_t bytes = device.sizes().shared_workspace(); bytes > 0)
    device.set_workspace(make(DType::int32, 1, bytes / size_of(DType::int32)));
  for (const auto& layer : model.layers()) {
    specs_.push_back(layer->spec(shape, compute, device.sizes()));
    outputs_.push_back(make(specs_.back().output));
    auto& saved = saved_.emplace_back();
    for (const auto& spec : specs_.back().saved) saved.push_back(make(spec));
  }
  parameters_ = make_parameters(compute);
  gradients_ = make_parameters(gradient_dtype());
  make_fp8_weights();
  residual_gradient_ = make(specs_.front().output);
  gradient_maximum_ = make(DType::int32, 1, 1);
  loss_scalars_ = make(DType::float64, 1, sizeof(LossScalars) / sizeof(double));
  host_batch_ = make(DType::int32, 1, device::HostBatch::elements(shape.tokens()));
  make_constants();
}

Tensor EagerRunner::make(DType dtype, std::int64_t rows, std::int64_t cols) {
  if (rows * cols == 0) return {};
  memory_.push_back(device_.allocate(bytes_of(dtype, rows * cols)));
  return {memory_.back().data(), dtype, rows, cols};
}

/// Those that join stand behind each other; the others begin at multiples of so many elements.
std::vector<Tensor> EagerRunner::make_parameters(DType dtype) {
  constexpr std::int64_t kElements = 64;
  std::vector<std::int64_t> offsets;
  std::int64_t elements = 0;
  for (const auto& parameter : model_.parameters()) {
    if (!parameter.fused_with_previous) elements = round_up(elements, kElements);
    offsets.push_back(elements);
    elements += parameter.elements();
  }
  const Tensor whole = make(dtype, 1, elements);
  spoil(whole);  // the gaps: nothing may be read or written there
  std::vector<Tensor> views;
  for (std::size_t p = 0; p < offsets.size(); ++p) {
    const auto& parameter = model_.parameters()[p];
    Tensor& view = views.emplace_back(whole.slice(offsets[p], offsets[p] + parameter.elements()));
    if (parameter.shape.size() == 2) view.rows = parameter.shape[0], view.cols = parameter.shape[1];
  }
  return views;
}

void EagerRunner::make_fp8_weights() {
  read_parameters_ = parameters_;
  fp8_weights_.resize(specs_.size());
  for (std::size_t layer = 0; layer < specs_.size(); ++layer) {
    for (const auto& members : specs_[layer].fp8_weights) {
      std::vector<Tensor> parts;
      for (const int p : members) parts.push_back(parameters_[static_cast<std::size_t>(p)]);
      const Tensor weight = stacked(parts);
      const Tensor values = make(DType::float8_e4m3fn, weight.rows, weight.cols);
      const bool in_blocks = specs_[layer].fp8_blocks;
      const auto scaling = in_blocks ? device::Fp8Scaling::blocks : device::Fp8Scaling::tensor;
      const auto scales = [&](std::int64_t rows, std::int64_t cols) {
        const auto shape = device::fp8_scale_shape(scaling, rows, cols);
        return make(DType::float32, shape.rows, shape.cols);
      };
      const Tensor scale = scales(weight.rows, weight.cols);
      fp8_weights_[layer].push_back({.weight = weight,
                                     .values = values,
                                     .transposed = make(DType::float8_e4m3fn, weight.cols, weight.rows),
                                     .scale = scale,
                                     .transposed_scale = in_blocks ? scales(weight.cols, weight.rows) : scale,
                                     .maxima = in_blocks ? make(DType::int32, weight.rows / device::kFp8Block,
                                                                weight.cols / device::kFp8Block)
                                                         : make(DType::int32, 1, 1),
                                     .in_blocks = in_blocks});
      std::int64_t row = 0;
      for (const int p : members) {
        Tensor& read = read_parameters_[static_cast<std::size_t>(p)];
        read = values.slice_rows(row, row + read.rows);
        row += read.rows;
      }
    }
  }
}

void EagerRunner::cast_fp8_weights() {
  for (const auto& of_layer : fp8_weights_) {
    for (const CastWeight& cast : of_layer) {
      device_.run(device::op::Zero{.destination = cast.maxima});
      if (cast.in_blocks) {
        cast_blocks(cast);
        continue;
      }
      device_.run(device::op::Fp8Maximum{.source = cast.weight, .maximum = cast.maxima});
      device_.run(device::op::Fp8Cast{.source = cast.weight,
                                      .maximum = cast.maxima,
                                      .values = cast.values,
                                      .transposed = cast.transposed,
                                      .scale = cast.scale,
                                      .counts = nullptr});
    }
  }
}

void EagerRunner::cast_blocks(const CastWeight& cast) {
  const auto flat = [](const Tensor& matrix) { return matrix.slice(0, matrix.elements()); };
  device_.run(device::op::Fp8BlockMaximum{.source = flat(cast.weight), .first = 0, .maxima = cast.maxima});
  device_.run(device::op::Fp8BlockScales{
      .maxima = cast.maxima, .scales = cast.scale, .transposed_scales = cast.transposed_scale});
  device_.run(device::op::Fp8BlockCast{.source = flat(cast.weight),
                                       .first = 0,
                                       .maxima = cast.maxima,
                                       .values = flat(cast.values),
                                       .counts = nullptr});
  device_.run(device::op::Fp8Transpose{.source = cast.values, .transposed = cast.transposed});
}

void EagerRunner::make_constants() {
  const auto constants = model_.constants(shape_.seq_len, compute_);
  for (int c = 0; c < static_cast<int>(constants.size()); ++c) {
    std::vector<std::byte> table(static_cast<std::size_t>(constants[c].bytes()));
    model_.fill_constant(c, constants[c], table.data());
    constants_.push_back(make(constants[c]));
    device_.upload(constants_.back(), table.data(), device::Stream::compute);
    device_.synchronize(device::Stream::compute);
  }
}

void EagerRunner::spoil(Tensor tensor) const {
  if (unwritten_ == Unwritten::nan && tensor)
    std::memset(tensor.data, 0xFF, static_cast<std::size_t>(tensor.bytes()));
}

void EagerRunner::upload(const device::HostBatch& batch, double inverse_tokens) {
  require(batch.token_count() == shape_.tokens(), "a batch of another size");
  const LossScalars scalars{.inverse_tokens = inverse_tokens};
  device_.upload(host_batch_, batch.values().data(), device::Stream::compute);
  device_.upload(loss_scalars_, &scalars, device::Stream::compute);
  device_.synchronize(device::Stream::compute);
  batch_ = device::HostBatch::view_of(host_batch_, batch.counts());
  cast_fp8_weights();
}

double EagerRunner::loss_sum() {
  LossScalars scalars;
  device_.download(&scalars, loss_scalars_, device::Stream::compute);
  device_.synchronize(device::Stream::compute);
  return scalars.loss_sum;
}

EagerRunner::Operands EagerRunner::operands(std::size_t layer, const std::vector<BufferSpec>& scratch) {
  Operands operands;
  const auto& parameters = model_.parameters();
  const bool has_adapters = std::ranges::any_of(parameters, &Parameter::adapter);
  for (const auto& use : specs_[layer].parameters) {
    const auto p = static_cast<std::size_t>(use.parameter);
    const bool frozen = has_adapters && !parameters[p].adapter;
    operands.parameters.push_back(read_parameters_[p]);
    operands.gradients.push_back(frozen ? Tensor() : gradients_[p]);
  }
  for (const auto& cast : fp8_weights_[layer])
    operands.fp8_weights.push_back({.scale = cast.scale, .transposed = cast.transposed});
  for (const auto& spec : scratch) {
    if (spec.bytes() > 0) operands.memory.push_back(device_.allocate(spec.bytes()));
    operands.scratch.push_back(spec.bytes() > 0
                                   ? Tensor{operands.memory.back().data(), spec.dtype, spec.rows, spec.cols}
                                   : Tensor());
    spoil(operands.scratch.back());
  }
  return operands;
}

LayerContext EagerRunner::context(std::size_t layer, const Operands& operands) {
  auto* const scalars = static_cast<LossScalars*>(loss_scalars_.data);
  return {.operations = device_,
          .batch = batch_,
          .seq_len = shape_.seq_len,
          .attention_room = shape_.attention_room,
          .logits_bytes = shape_.logits_bytes,
          .input = layer > 0 ? outputs_[layer - 1] : Tensor(),
          .output = {},
          .gradient = {},
          .parameters = operands.parameters,
          .parameter_gradients = {},
          .accumulate = {},
          .saved = saved_[layer],
          .scratch = operands.scratch,
          .kv_cache = {},
          .constants = constants_,
          .fp8_weights = operands.fp8_weights,
          .gradient_maximum = operands.gradient_maximum,
          .inverse_tokens = &scalars->inverse_tokens,
          .loss_sum = &scalars->loss_sum,
          .logits = {},
          .logits_row = -1};
}

void EagerRunner::forward(std::size_t layer) {
  const Operands given = operands(layer, specs_[layer].forward_scratch);
  LayerContext c = context(layer, given);
  c.output = outputs_[layer];
  spoil(c.output);
  for (const Tensor& saved : saved_[layer]) spoil(saved);
  model_.layers()[layer]->forward(c);
  device_.synchronize(device::Stream::compute);
}

void EagerRunner::backward(std::size_t layer, Accumulate accumulate, bool recomputes) {
  Operands given = operands(layer, specs_[layer].backward_scratch);
  given.accumulate.assign(given.gradients.size(), accumulate);
  backward(layer, given, recomputes);
}

/// What the layer says that it does not read is not given to it.
void EagerRunner::backward(std::size_t layer, Operands& given, bool recomputes) {
  const LayerSpec& spec = specs_[layer];
  for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
    if (!spec.parameters[i].backward) given.parameters[i] = {};
    if (given.accumulate[i] == Accumulate::no) spoil(given.gradients[i]);
  }
  for (std::size_t w = 0; w < given.fp8_weights.size(); ++w)
    given.fp8_weights[w].scale = fp8_weights_[layer][w].transposed_scale;
  LayerContext c = context(layer, given);
  if (!spec.keeps_input) c.input = {};
  c.gradient = residual_gradient_;
  c.parameter_gradients = given.gradients;
  c.accumulate = given.accumulate;
  c.recomputes = recomputes;
  for (std::size_t i = 0; recomputes && i < spec.saved.size(); ++i) {
    if (spec.saved[i].recomputed) spoil(saved_[layer][i]);
  }
  model_.layers()[layer]->backward(c);
  device_.synchronize(device::Stream::compute);
}

double EagerRunner::forward(const device::HostBatch& batch) {
  upload(batch, 0);
  for (std::size_t layer = 0; layer < specs_.size(); ++layer) forward(layer);
  return loss_sum();
}

double EagerRunner::forward_and_backward(const device::HostBatch& batch, double inverse_tokens,
                                         Accumulate accumulate, bool recomputes) {
  upload(batch, inverse_tokens);
  for (std::size_t layer = 0; layer + 1 < specs_.size(); ++layer) forward(layer);
  spoil(residual_gradient_);
  spoil(gradient_maximum_);
  std::vector<Accumulate> next(parameters_.size(), accumulate);  // a tied parameter adds in its second layer
  for (std::size_t layer = specs_.size(); layer-- > 0;) {
    Operands given = operands(layer, specs_[layer].backward_scratch);
    given.gradient_maximum = gradient_maximum_;
    for (const auto& use : specs_[layer].parameters)
      given.accumulate.push_back(
          std::exchange(next[static_cast<std::size_t>(use.parameter)], Accumulate::yes));
    backward(layer, given, recomputes);
  }
  return loss_sum();
}

Tensor EagerRunner::logits(const device::HostBatch& batch, std::int64_t row) {
  upload(batch, 0);
  const std::size_t last = specs_.size() - 1;
  for (std::size_t layer = 0; layer < last; ++layer) forward(layer);
  if (!logits_) logits_ = make(compute_, 1, model_.vocabulary());
  spoil(logits_);
  const Operands given = operands(last, specs_[last].forward_scratch);
  LayerContext c = context(last, given);
  c.logits = logits_;
  c.logits_row = row;
  model_.layers()[last]->forward(c);
  device_.synchronize(device::Stream::compute);
  return logits_;
}

}  // namespace llampi::model
