// SPDX-License-Identifier: Apache-2.0
#include "train/not_finite.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/core/elements.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/int8_blocks.hpp"
#include "llampi/fsdp/unit.hpp"

namespace llampi::train {
namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 20;  // elements

/// How many come before the first that is not finite; of blocks all elements are what the scale is.
std::int64_t finite_elements(const std::byte* data, DType dtype, std::int64_t elements) {
  if (dtype == DType::int8_blocks) {
    const auto* const blocks = reinterpret_cast<const Int8Block*>(data);
    const auto* const end = blocks + elements / kInt8BlockElements;
    const auto is_bad = [](const Int8Block& block) { return !std::isfinite(block.scale); };
    return (std::find_if(blocks, end, is_bad) - blocks) * kInt8BlockElements;
  }
  std::int64_t finite = 0;
  with_elements(dtype, [&](auto element, auto, auto widen) {
    const auto* const values = reinterpret_cast<const decltype(element)*>(data);
    const auto is_bad = [&](auto x) { return !std::isfinite(widen(x)); };
    finite = std::find_if(values, values + elements, is_bad) - values;
  });
  return finite;
}

std::optional<std::int64_t> first_bad_element(device::Device& device, Tensor values) {
  std::vector<std::byte> host;
  for (std::int64_t begin = 0; begin < values.elements(); begin += kChunk) {
    const Tensor part = values.slice(begin, std::min(begin + kChunk, values.elements()));
    host.resize(static_cast<std::size_t>(part.bytes()));
    device.download(host.data(), part, device::Stream::compute);
    device.synchronize(device::Stream::compute);
    const std::int64_t finite = finite_elements(host.data(), part.dtype, part.elements());
    if (finite < part.elements()) return begin + finite;
  }
  return std::nullopt;
}

struct BadElement {
  int parameter = std::numeric_limits<int>::max();
  std::int64_t element = 0;

  bool operator<(const BadElement& other) const {
    return std::tie(parameter, element) < std::tie(other.parameter, other.element);
  }
};

/// The first of this rank's parameters.
std::optional<BadElement> bad_parameter(device::Device& device, const fsdp::Engine& engine) {
  std::optional<BadElement> first;
  for (const auto& piece : engine.pieces_held()) {
    const auto element = first_bad_element(device, piece.master);
    if (!element) continue;
    const BadElement found{piece.parameter, piece.begin + *element};
    if (!first || found < *first) first = found;
  }
  return first;
}

/// What one rank has found.
struct Finding {
  std::optional<BadElement> parameter;
  bool loss = false;  ///< is not finite
  int unit = -1;      ///< of whose gradient it holds a bad number
  std::string host;

  auto members() { return std::tie(parameter, loss, unit, host); }
};

std::string where(const std::vector<Finding>& findings, const std::vector<int>& ranks) {
  const std::string& host = findings[static_cast<std::size_t>(ranks[0])].host;
  return ranks.size() == 1 ? comm::format_rank(ranks[0], host) : comm::format_ranks(ranks);
}

std::vector<int> ranks_with(const std::vector<Finding>& findings, const auto& property) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < findings.size(); ++r) {
    if (property(findings[r])) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

}  // namespace

NotFinite find_not_finite(comm::World& world, device::Device& device, fsdp::Engine& engine, double own_loss) {
  const auto findings =
      comm::all_gather_value<Finding>(world, {bad_parameter(device, engine), !std::isfinite(own_loss),
                                              engine.unit_of_bad_gradient(), world.topology().host});
  const auto first = std::min_element(findings.begin(), findings.end(), [](const auto& a, const auto& b) {
    return a.parameter.value_or(BadElement{}) < b.parameter.value_or(BadElement{});
  });
  if (first->parameter) {
    const auto [parameter, element] = *first->parameter;
    const auto& units = engine.compiled().units;
    const int unit = fsdp::unit_of_parameter(
        units, engine.model().parameters().size())[static_cast<std::size_t>(parameter)];
    return {true,
            fmt::format("the parameter {} of unit {} is not finite itself, at element {}, which {} holds",
                        engine.model().parameters()[static_cast<std::size_t>(parameter)].name,
                        units[static_cast<std::size_t>(unit)].name, element,
                        where(findings, {static_cast<int>(first - findings.begin())}))};
  }
  std::string text;
  const auto losses = ranks_with(findings, [](const auto& finding) { return finding.loss; });
  text = losses.empty() ? "the loss of every rank is finite"
                        : fmt::format("the loss is not finite on {}", where(findings, losses));
  int unit = std::numeric_limits<int>::max();
  for (const auto& finding : findings) unit = finding.unit >= 0 ? std::min(unit, finding.unit) : unit;
  if (unit == std::numeric_limits<int>::max()) return {false, text + ", all gradients are finite"};
  const auto holders = ranks_with(findings, [&](const auto& finding) { return finding.unit == unit; });
  text += fmt::format(", the first unit with a gradient that is not finite is {}, in the shard of {}",
                      engine.compiled().units[static_cast<std::size_t>(unit)].name, where(findings, holders));
  return {false, text};
}

std::optional<std::string> NotFiniteSteps::not_finite(const StepMetrics& metrics, const NotFinite& found) {
  ++all_, ++in_a_row_;
  if (in_a_row_ > policy_.skip || found.in_parameters)
    return fmt::format("the loss or the gradient is not finite at step {}: {}", metrics.step, found.where);
  log_.warning("step {} {}: its loss or gradient is not finite ({}); {} in a row, {} so far", metrics.step,
               std::isfinite(metrics.grad_norm) ? "counts as skipped, but its gradient was finite and applied"
                                                : "is skipped",
               found.where, in_a_row_, all_);
  return std::nullopt;
}

}  // namespace llampi::train
