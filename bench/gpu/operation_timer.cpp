// SPDX-License-Identifier: Apache-2.0
#include "gpu/operation_timer.hpp"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

namespace llampi::bench {
namespace {

template <class T, class... List>
constexpr bool is_one_of = (std::is_same_v<T, List> || ...);

/// Matrix products with the weight. The head's backward pass also has the forward product.
template <class O>
int products_of(const O& o) {
  if constexpr (is_one_of<O, device::op::QkvRope, device::op::ProjectionResidual, device::op::GateUpSwiglu,
                          device::op::InputGradient, device::op::LinearCrossEntropy, device::op::Linear>)
    return 1;
  if constexpr (is_one_of<O, device::op::WeightGradient>) return o.dweight ? 1 : 0;
  if constexpr (is_one_of<O, device::op::LinearCrossEntropyBackward>) return o.dweight ? 3 : 2;
  return 0;
}

/// Two products forward, of which the causal half counts. Backward has five: the scores once more, and the
/// gradients of the probabilities, queries, keys and values.
template <class O>
double attention_flops(const O& o, int products) {
  return 2.0 * products * static_cast<double>(o.qkv.rows) * static_cast<double>(o.documents.max_seqlen) *
         static_cast<double>(o.shape.query_cols()) / 2;
}

struct Kind {
  std::string name;
  double flops = 0;
};

template <class O>
Kind kind_of(const O& o) {
  if constexpr (std::is_same_v<O, device::op::Attention>) return {o.kName, attention_flops(o, 2)};
  if constexpr (std::is_same_v<O, device::op::AttentionBackward>) return {o.kName, attention_flops(o, 5)};
  if constexpr (std::is_same_v<O, device::op::Fp8Product>) {
    return {fmt::format("{} {}x{}x{}", o.kName, o.a.rows, o.b.rows, o.a.cols),
            2.0 * static_cast<double>(o.a.elements()) * static_cast<double>(o.b.rows)};
  }
  const int products = products_of(o);
  if (products == 0) return {o.kName};
  const auto with = [&](const Tensor& weight, std::int64_t rows) -> Kind {
    return {fmt::format("{} {}x{}", o.kName, weight.rows, weight.cols),
            2.0 * products * static_cast<double>(rows) * static_cast<double>(weight.elements())};
  };
  if constexpr (is_one_of<O, device::op::InputGradient>) return with(o.weight, o.dx.rows);
  if constexpr (is_one_of<O, device::op::WeightGradient>) return with(o.dweight, o.x.rows);
  if constexpr (requires { o.valid_labels; }) return with(o.weight, device::op::rows_with_logits(o));
  if constexpr (requires { o.weight, o.x; }) return with(o.weight, o.x.rows);
  return {o.kName};
}

}  // namespace

OperationTimer::OperationTimer(device::Device& device) : device_(device) {
  device.decorate([this](const device::Operation& operation, const std::function<void()>& issue) {
    Kind kind = std::visit([](const auto& o) { return kind_of(o); }, operation);
    constexpr device::Stream kStream = device::Stream::compute;
    device::Event begin = device_.record_timed(kStream);
    issue();
    timed_.push_back({std::move(kind.name), kind.flops, std::move(begin), device_.record_timed(kStream)});
  });
}

std::map<std::string, OperationTime> OperationTimer::times() const {
  device_.synchronize_all();
  std::map<std::string, OperationTime> times;
  for (const Timed& timed : timed_) {
    auto& entry = times[timed.name];
    entry.seconds += device_.seconds_between(timed.begin, timed.end);
    entry.flops += timed.flops;
    ++entry.calls;
  }
  return times;
}

}  // namespace llampi::bench
