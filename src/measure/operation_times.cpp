// SPDX-License-Identifier: Apache-2.0
#include "measure/operation_times.hpp"

#include <fmt/format.h>

#include <type_traits>

namespace llampi::measure {
namespace {

template <class T, class... List>
constexpr bool is_one_of = (std::is_same_v<T, List> || ...);

/// "gate_up_swiglu 2048x1536x288": rows, weight.
template <class O>
std::string name_of_call(const O& o) {
  if constexpr (requires { o.weight, o.x; }) {
    return fmt::format("{} {}x{}x{}", o.kName, o.x.rows, o.weight.rows, o.weight.cols);
  } else if constexpr (requires { o.documents, o.qkv; }) {
    return fmt::format("{} {} of {}", o.kName, o.qkv.rows, o.documents.max_seqlen);
  } else if constexpr (requires { o.gradient; }) {
    return fmt::format("{} {}", o.kName, o.gradient.elements());
  } else if constexpr (requires { o.destination; }) {
    return fmt::format("{} {}", o.kName, o.destination.elements());
  } else {
    return o.kName;
  }
}

}  // namespace

OperationTimer::OperationTimer(device::Device& device, plan::AttentionKernels attention) : device_(device) {
  device.decorate([this, attention](const device::Operation& operation, const std::function<void()>& issue) {
    Timed timed{.name = std::visit([](const auto& o) { return name_of_call(o); }, operation),
                .amounts = plan::amounts_of(operation, attention),
                .optimizes = std::visit(
                    [](const auto& o) {
                      using O = std::decay_t<decltype(o)>;
                      return is_one_of<O, device::op::AdamW, device::op::SumSquares, device::op::FinishNorm>;
                    },
                    operation),
                .begin = device_.record_timed(device::Stream::compute),
                .end = {}};
    issue();
    timed.end = device_.record_timed(device::Stream::compute);
    timed_.push_back(std::move(timed));
  });
}

std::map<std::string, OperationTime> OperationTimer::take() {
  device_.synchronize_all();
  std::map<std::string, OperationTime> times;
  for (const Timed& timed : timed_) {
    const double seconds = device_.seconds_between(timed.begin, timed.end);
    OperationTime& entry = times[timed.name];
    entry.amounts += timed.amounts;
    entry.optimizes = timed.optimizes;
    entry.seconds += seconds;
    ++entry.calls;
  }
  for (auto& [name, entry] : times) {
    for (double& amount : entry.amounts.values) amount /= entry.calls;
  }
  timed_.clear();
  return times;
}

}  // namespace llampi::measure
