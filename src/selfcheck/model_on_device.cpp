// SPDX-License-Identifier: Apache-2.0
#include "selfcheck/model_on_device.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "llampi/core/half.hpp"

namespace llampi::selfcheck {
namespace {

/// Calls `work(Element{}, narrow, widen)` with the type that holds a `dtype` and the conversions.
template <class Work>
void with_elements(DType dtype, const Work& work) {
  const auto same = [](auto x) { return x; };
  switch (dtype) {
    case DType::float64:
      return work(double{}, same, same);
    case DType::float32:
      return work(
          float{}, [](double x) { return static_cast<float>(x); }, same);
    case DType::bfloat16:
      return work(
          std::uint16_t{}, [](double x) { return to_bfloat16(static_cast<float>(x)); }, from_bfloat16);
    case DType::float16:
      return work(
          std::uint16_t{}, [](double x) { return to_float16(static_cast<float>(x)); }, from_float16);
    default:
      throw Error(fmt::format("internal error: {} are no floating-point numbers", to_string(dtype)));
  }
}

}  // namespace

Numbers rounded(Numbers numbers, DType dtype) {
  with_elements(dtype, [&](auto, auto narrow, auto widen) {
    for (double& x : numbers) x = static_cast<double>(widen(narrow(x)));
  });
  return numbers;
}

void upload_numbers(device::Device& device, const Numbers& numbers, Tensor target) {
  require(std::ssize(numbers) == target.elements(), "numbers for a tensor of another size");
  with_elements(target.dtype, [&](auto element, auto narrow, auto) {
    std::vector<decltype(element)> elements;
    for (const double x : numbers) elements.push_back(narrow(x));
    device.upload(target, elements.data(), device::Stream::compute);
    device.synchronize(device::Stream::compute);
  });
}

Numbers download_numbers(device::Device& device, Tensor source) {
  Numbers numbers;
  with_elements(source.dtype, [&](auto element, auto, auto widen) {
    std::vector<decltype(element)> elements(static_cast<std::size_t>(source.elements()));
    device.download(elements.data(), source, device::Stream::compute);
    device.synchronize(device::Stream::compute);
    for (const auto x : elements) numbers.push_back(static_cast<double>(widen(x)));
  });
  return numbers;
}

double distance(const Numbers& values, const Numbers& judged) {
  if (values.size() != judged.size()) return std::numeric_limits<double>::quiet_NaN();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    difference += (values[i] - judged[i]) * (values[i] - judged[i]);
    norm += judged[i] * judged[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

/// The views that a stage's context points to.
struct ModelOnDevice::Operands {
  std::vector<Tensor> parameters, gradients, scratch;
  std::vector<device::Accumulate> accumulate;
};

ModelOnDevice::ModelOnDevice(const model::Model& model, device::Device& device, model::BatchShape shape,
                             DType compute)
    : model_(model), device_(device), shape_(shape), compute_(compute) {
  if (const std::int64_t bytes = device.shared_workspace(); bytes > 0)
    device.set_workspace(make(DType::int32, 1, bytes / size_of(DType::int32)));
  for (const auto& stage : model.stages()) {
    specs_.push_back(stage->spec(shape, compute, device));
    outputs_.push_back(make(specs_.back().output));
    auto& saved = saved_.emplace_back();
    for (const auto& spec : specs_.back().saved) saved.push_back(make(spec));
  }
  parameters_ = make_parameters(compute);
  gradients_ = make_parameters(gradient_dtype());
  residual_gradient_ = make(specs_.front().output);
  scalars_ = make(DType::float64, 1, sizeof(device::StepScalars) / sizeof(double));
  host_batch_ = make(DType::int32, 1, device::HostBatch::elements(shape.tokens()));
  const auto constants = model.constants(shape.seq_len, compute);
  for (int c = 0; c < static_cast<int>(constants.size()); ++c) {
    std::vector<std::byte> table(static_cast<std::size_t>(constants[c].bytes()));
    model.fill_constant(c, constants[c], table.data());
    constants_.push_back(make(constants[c]));
    device.upload(constants_.back(), table.data(), device::Stream::compute);
    device.synchronize(device::Stream::compute);
  }
}

Tensor ModelOnDevice::make(DType dtype, std::int64_t rows, std::int64_t cols) {
  if (rows * cols == 0) return {};
  memory_.push_back(device_.allocate(rows * cols * size_of(dtype)));
  return {memory_.back().data(), dtype, rows, cols};
}

/// Those that join stand behind each other, as in a unit.
std::vector<Tensor> ModelOnDevice::make_parameters(DType dtype) {
  constexpr std::int64_t kElements = 64;  // of alignment, as in a unit
  std::vector<std::int64_t> offsets;
  std::int64_t elements = 0;
  for (const auto& parameter : model_.parameters()) {
    if (!parameter.joins_previous) elements = (elements + kElements - 1) / kElements * kElements;
    offsets.push_back(elements);
    elements += parameter.elements();
  }
  const Tensor whole = make(dtype, 1, elements);
  std::vector<Tensor> views;
  for (std::size_t p = 0; p < offsets.size(); ++p) {
    const auto& parameter = model_.parameters()[p];
    views.push_back(whole.slice(offsets[p], offsets[p] + parameter.elements()));
    if (parameter.shape.size() == 2) views[p].rows = parameter.shape[0], views[p].cols = parameter.shape[1];
  }
  return views;
}

void ModelOnDevice::upload(const device::HostBatch& batch, const device::StepScalars& scalars) {
  const std::int64_t tokens = shape_.tokens();
  require(batch.token_count() == tokens, "a batch of another size");
  device_.upload(host_batch_, batch.values().data(), device::Stream::compute);
  device_.upload(scalars_, &scalars, device::Stream::compute);
  device_.synchronize(device::Stream::compute);
  batch_ = {.tokens = host_batch_.slice(0, tokens),
            .labels = host_batch_.slice(tokens, 2 * tokens),
            .positions = host_batch_.slice(2 * tokens, 3 * tokens),
            .segment_offsets = host_batch_.slice(3 * tokens, 4 * tokens + 1),
            .segments = batch.segments};
}

device::StepScalars ModelOnDevice::scalars() {
  device::StepScalars scalars;
  device_.download(&scalars, scalars_, device::Stream::compute);
  device_.synchronize(device::Stream::compute);
  return scalars;
}

ModelOnDevice::Operands ModelOnDevice::operands(std::size_t stage,
                                                const std::vector<model::BufferSpec>& scratch) {
  Operands operands;
  for (const auto& use : specs_[stage].parameters) {
    operands.parameters.push_back(parameters_[static_cast<std::size_t>(use.parameter)]);
    operands.gradients.push_back(gradients_[static_cast<std::size_t>(use.parameter)]);
  }
  for (const auto& spec : scratch) operands.scratch.push_back(make(spec));
  return operands;
}

model::StageContext ModelOnDevice::context(std::size_t stage, const Operands& operands) {
  return {.device = device_,
          .batch = batch_,
          .seq_len = shape_.seq_len,
          .input = stage > 0 ? outputs_[stage - 1] : Tensor(),
          .output = {},
          .gradient = {},
          .parameters = operands.parameters,
          .parameter_gradients = operands.gradients,
          .accumulate = operands.accumulate,
          .saved = saved_[stage],
          .scratch = operands.scratch,
          .kept = {},
          .constants = constants_,
          .scalars = static_cast<device::StepScalars*>(scalars_.data),
          .logits = {},
          .logits_row = 0};
}

void ModelOnDevice::forward(std::size_t stage) {
  const Operands given = operands(stage, specs_[stage].forward_scratch);
  model::StageContext c = context(stage, given);
  c.output = outputs_[stage];
  model_.stages()[stage]->forward(c);
  device_.synchronize(device::Stream::compute);
}

void ModelOnDevice::recompute(std::size_t stage) {
  const Operands given = operands(stage, specs_[stage].forward_scratch);
  model::StageContext c = context(stage, given);
  model_.stages()[stage]->recompute(c);
  device_.synchronize(device::Stream::compute);
}

void ModelOnDevice::backward(std::size_t stage, device::Accumulate accumulate) {
  Operands given = operands(stage, specs_[stage].backward_scratch);
  given.accumulate.assign(given.gradients.size(), accumulate);
  model::StageContext c = context(stage, given);
  c.gradient = residual_gradient_;
  model_.stages()[stage]->backward(c);
  device_.synchronize(device::Stream::compute);
}

}  // namespace llampi::selfcheck
