// SPDX-License-Identifier: Apache-2.0
#include "model_runner.hpp"

#include <algorithm>
#include <cstring>

#include "llampi/device/device.hpp"
#include "llampi/device/host_batch.hpp"

namespace llampi::model {
namespace {

void fill_with_nan(Tensor tensor) {
  if (tensor.data) std::memset(tensor.data, 0xFF, static_cast<std::size_t>(tensor.bytes()));
}

double read(Tensor tensor, std::int64_t element) {
  if (tensor.dtype == DType::float64) return tensor.as<double>()[element];
  return static_cast<double>(tensor.as<float>()[element]);
}

void write(Tensor tensor, std::int64_t element, double value) {
  if (tensor.dtype == DType::float64) {
    tensor.as<double>()[element] = value;
  } else {
    tensor.as<float>()[element] = static_cast<float>(value);
  }
}

std::vector<double> values(Tensor tensor) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) result.push_back(read(tensor, i));
  return result;
}

}  // namespace

ModelRunner::ModelRunner(const Model& model, device::Device& device, BatchShape shape, DType compute)
    : model_(model), device_(device), shape_(shape), compute_(compute) {
  for (const auto& stage : model.stages()) {
    specs_.push_back(stage->spec(shape, compute, device));
    outputs_.push_back(make(specs_.back().output));
    saved_.emplace_back();
    for (const auto& spec : specs_.back().saved) saved_.back().push_back(make(spec));
  }
  parameters_ = make_parameters(parameter_memory_);
  gradients_ = make_parameters(gradient_memory_);
  residual_gradient_ = make(specs_.front().output);
  scalars_ = device.allocate(sizeof(device::StepScalars));
  host_batch_ = make({"batch", 1, device::HostBatch::elements(shape.tokens()), DType::int32});
  const auto constants = model.constants(shape.seq_len, compute);
  for (std::size_t i = 0; i < constants.size(); ++i) {
    constants_.push_back(make(constants[i]));
    model.fill_constant(static_cast<int>(i), constants[i], constants_.back().tensor.data);
  }
}

ModelRunner::Buffer ModelRunner::make(const BufferSpec& spec) {
  Buffer buffer;
  if (spec.bytes() == 0) return buffer;
  buffer.memory = device_.allocate(spec.bytes());
  buffer.tensor = {buffer.memory.data(), spec.dtype, spec.rows, spec.cols};
  return buffer;
}

/// One after another; those that do not join the one before at a multiple of 128 bytes, with NaN in the gaps.
std::vector<Tensor> ModelRunner::make_parameters(device::Memory& memory) {
  constexpr std::int64_t kAligned = 128;
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;
  for (const auto& parameter : model_.parameters()) {
    if (!parameter.joins_previous) bytes = (bytes + kAligned - 1) / kAligned * kAligned;
    offsets.push_back(bytes);
    bytes += parameter.elements() * size_of(compute_);
  }
  memory = device_.allocate(bytes);
  fill_with_nan({memory.data(), compute_, 1, bytes / size_of(compute_)});
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const auto& shape = model_.parameters()[i].shape;
    tensors.push_back({memory.data() + offsets[i], compute_, shape.size() == 2 ? shape[0] : 1, shape.back()});
  }
  return tensors;
}

void ModelRunner::set_parameter(int parameter, std::int64_t element, double value) {
  write(parameters_[static_cast<std::size_t>(parameter)], element, value);
}

double ModelRunner::parameter(int parameter, std::int64_t element) const {
  return read(parameters_[static_cast<std::size_t>(parameter)], element);
}

void ModelRunner::set_parameters(const std::function<double(const Parameter&, std::int64_t)>& value) {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    for (std::int64_t i = 0; i < parameters_[p].elements(); ++i) {
      write(parameters_[p], i, value(model_.parameters()[p], i));
    }
  }
}

void ModelRunner::upload(const device::HostBatch& batch) {
  const std::int64_t tokens = shape_.tokens();
  require(batch.token_count() == tokens, "the batch has another size than the runner");
  const Tensor whole = host_batch_.tensor;
  device_.upload(whole, batch.values().data(), device::Stream::compute);
  device_.synchronize(device::Stream::compute);
  batch_ = {.tokens = whole.slice(0, tokens),
            .labels = whole.slice(tokens, 2 * tokens),
            .positions = whole.slice(2 * tokens, 3 * tokens),
            .segment_offsets = whole.slice(3 * tokens, 4 * tokens + 1),
            .segments = batch.segments};
}

StageContext ModelRunner::context(std::size_t stage, std::span<const BufferSpec> scratch) {
  stage_parameters_.clear();
  stage_saved_.clear();
  stage_scratch_.clear();
  stage_constants_.clear();
  scratch_.clear();
  for (const auto& use : specs_[stage].parameters) {
    stage_parameters_.push_back(parameters_[static_cast<std::size_t>(use.parameter)]);
  }
  for (const auto& buffer : saved_[stage]) stage_saved_.push_back(buffer.tensor);
  for (const auto& spec : scratch) {
    scratch_.push_back(make(spec));
    fill_with_nan(scratch_.back().tensor);
    stage_scratch_.push_back(scratch_.back().tensor);
  }
  for (const auto& buffer : constants_) stage_constants_.push_back(buffer.tensor);
  return {.device = device_,
          .batch = batch_,
          .seq_len = shape_.seq_len,
          .input = stage > 0 ? outputs_[stage - 1].tensor : Tensor(),
          .output = outputs_[stage].tensor,
          .gradient = {},
          .parameters = stage_parameters_,
          .parameter_gradients = {},
          .accumulate = {},
          .saved = stage_saved_,
          .scratch = stage_scratch_,
          .kept = {},
          .constants = stage_constants_,
          .scalars = reinterpret_cast<device::StepScalars*>(scalars_.data()),
          .logits = {},
          .logits_row = 0};
}

/// The first `stages` stages.
void ModelRunner::forward(std::size_t stages) {
  for (std::size_t stage = 0; stage < stages; ++stage) {
    StageContext c = context(stage, specs_[stage].forward_scratch);
    fill_with_nan(c.output);
    for (const Tensor& saved : stage_saved_) fill_with_nan(saved);
    model_.stages()[stage]->forward(c);
    device_.synchronize(device::Stream::compute);
  }
}

double ModelRunner::loss_sum(const device::HostBatch& batch) {
  upload(batch);
  auto* scalars = new (scalars_.data()) device::StepScalars;
  forward(specs_.size());
  return scalars->loss_sum;
}

std::vector<double> ModelRunner::logits(const device::HostBatch& batch, std::int64_t row) {
  upload(batch);
  const std::size_t last = specs_.size() - 1;
  forward(last);
  const Buffer result = make({"logits", 1, model_.vocabulary(), compute_});
  fill_with_nan(result.tensor);
  StageContext c = context(last, specs_[last].forward_scratch);
  c.logits = result.tensor;
  c.logits_row = row;
  model_.stages()[last]->forward(c);
  device_.synchronize(device::Stream::compute);
  return values(result.tensor);
}

double ModelRunner::backward(const device::HostBatch& batch, double inverse_tokens,
                             device::Accumulate accumulate) {
  upload(batch);
  auto* scalars = new (scalars_.data()) device::StepScalars;
  scalars->inverse_tokens = inverse_tokens;
  forward(specs_.size() - 1);
  fill_with_nan(residual_gradient_.tensor);
  if (accumulate == device::Accumulate::no) {
    for (const Tensor& gradient : gradients_) fill_with_nan(gradient);
  }
  std::vector<device::Accumulate> next(parameters_.size(),
                                       accumulate);  // a tied parameter adds in its second stage
  for (std::size_t stage = specs_.size(); stage-- > 0;) {
    StageContext c = context(stage, specs_[stage].backward_scratch);
    stage_gradients_.clear();
    stage_accumulate_.clear();
    for (std::size_t i = 0; i < specs_[stage].parameters.size(); ++i) {
      const auto& use = specs_[stage].parameters[i];
      const auto p = static_cast<std::size_t>(use.parameter);
      if (!use.backward) stage_parameters_[i] = {};
      stage_gradients_.push_back(gradients_[p]);
      stage_accumulate_.push_back(std::exchange(next[p], device::Accumulate::yes));
    }
    if (!specs_[stage].keeps_input) c.input = {};
    c.output = {};
    c.gradient = residual_gradient_.tensor;
    c.parameter_gradients = stage_gradients_;
    c.accumulate = stage_accumulate_;
    model_.stages()[stage]->backward(c);
    device_.synchronize(device::Stream::compute);
  }
  return scalars->loss_sum;
}

std::vector<double> ModelRunner::gradient(int parameter) const {
  return values(gradients_[static_cast<std::size_t>(parameter)]);
}

}  // namespace llampi::model
