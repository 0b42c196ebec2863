// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/product_timer.hpp"

#include <algorithm>
#include <optional>
#include <span>

#include "device/cuda/checksum.hpp"
#include "device/cuda/common.hpp"

namespace llampi::device::cuda {
namespace {

constexpr int kTurns = 3;
constexpr double kBurst = 1e-3;  ///< seconds: what is over in microseconds is hard to tell apart
constexpr int kMostRunsOfBurst = 20;
/// Times the fastest of single runs, some of which are made at the full clock and others after it has fallen to three quarters.
constexpr double kHopeless = 1.6;
constexpr double kNoise = 2e-5;  ///< seconds: of a single run

int runs_of_burst(double seconds) {
  constexpr double kLeast = 1e-6;  // of a clock that may show 0
  return std::clamp(static_cast<int>(kBurst / std::max(seconds, kLeast)), 1, kMostRunsOfBurst);
}

}  // namespace

std::vector<NamedWay> ways_of(const LibraryProduct& product, bool in_place) {
  const std::vector<LibraryProduct::Algorithm> algorithms = product.algorithms();
  std::vector<NamedWay> ways;
  for (const bool copies : {false, true}) {
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
      const bool fits = copies ? !in_place : in_place || product.adds_out_of_place(i);
      if (algorithms[i].runs && fits)
        ways.push_back({{i, copies}, (copies ? "copy " : "") + algorithms[i].name});
    }
  }
  return ways;
}

ProductTimer::ProductTimer(LibraryProduct& product, const ColumnProduct& asked,
                           const ColumnOperands& operands, const Tensor& workspace, cudaStream_t stream)
    : product_(product),
      operands_(operands),
      workspace_(workspace),
      stream_(stream),
      in_place_(asked.adds && asked.in_place),
      result_bytes_(((asked.result.cols - 1) * asked.result.stride + asked.result.rows) *
                    size_of(asked.result.dtype)) {}

ProductTimer::Choice ProductTimer::fastest(const std::vector<NamedWay>& ways, bool must_repeat) const {
  const std::vector<Timed> times = times_of(ways);
  const auto best = std::ranges::find_if(
      times, [&](const Timed& timed) { return !must_repeat || repeats_its_bits(timed.way); });
  if (best == times.end()) return {times.front().way, false};
  return {best->way};
}

/// In turns, of which the first does not count, so that a clock that falls meanwhile is fair. What a single run shows to be far
/// slower is not timed again and stays behind the others, as that run was at another clock.
std::vector<ProductTimer::Timed> ProductTimer::times_of(const std::vector<NamedWay>& ways) const {
  std::vector<Timed> times;
  std::optional<Error> failure;
  for (const NamedWay& way : ways) {
    try {
      times.push_back({way, seconds_of(way, 1)});
    } catch (const Error& error) {
      failure = error;
    }
  }
  if (times.empty()) throw Error(*failure);
  std::ranges::stable_sort(times, {}, &Timed::seconds);
  const double least = times.front().seconds;
  const auto hopeless = std::ranges::upper_bound(times, kHopeless * least + kNoise, {}, &Timed::seconds);
  const std::span close(times.begin(), hopeless);
  const int runs = runs_of_burst(least);
  for (int turn = 0; close.size() > 1 && turn < kTurns; ++turn) {
    for (Timed& timed : close) {
      const double now = seconds_of(timed.way, runs);
      timed.seconds = turn < 2 ? now : std::min(timed.seconds, now);
    }
  }
  std::ranges::stable_sort(close, {}, &Timed::seconds);
  return times;
}

double ProductTimer::seconds_of(const LibraryProduct::Way& way, int runs) const {
  return product_.time(way, operands_, workspace_.data, stream_, runs);
}

/// As far as two runs tell. Without a workspace there is no place for the sum: then none adds in parts.
bool ProductTimer::repeats_its_bits(const LibraryProduct::Way& way) const {
  if (workspace_.bytes() < static_cast<std::int64_t>(sizeof(std::uint64_t))) return true;
  const std::uint64_t first = checksum_of_run(way), second = checksum_of_run(way);
  return first == second;
}

std::uint64_t ProductTimer::checksum_of_run(const LibraryProduct::Way& way) const {
  if (in_place_)
    check(cudaMemsetAsync(operands_.result, 0, static_cast<std::size_t>(result_bytes_), stream_),
          "cudaMemsetAsync");
  product_.run(way, operands_, workspace_.data, stream_);
  auto* const sum = static_cast<std::uint64_t*>(workspace_.data);
  checksum(operands_.result, result_bytes_, sum, stream_);
  std::uint64_t result = 0;
  check(cudaMemcpyAsync(&result, sum, sizeof result, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  return result;
}

}  // namespace llampi::device::cuda
