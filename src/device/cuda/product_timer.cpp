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

// Under load. An H200 at its power limit computes products at 1,485 of 1,980 MHz. A way that needs less energy runs at a
// higher clock, but not in bursts: there all ways have the clock that their mean power allows. How long a clock takes to
// settle is assumed.
constexpr std::size_t kFinalists = 3;
constexpr double kClose = 1.03;      ///< times the fastest: what is slower in bursts does not make up for it
constexpr double kSettling = 0.02;   ///< seconds, not counted
constexpr double kSustained = 0.03;  ///< seconds, twice
/// Seconds: with shorter products the GPU waits for launches, and power does not limit it.
constexpr double kLimitedByPower = 5e-5;

int runs_of(double wanted_seconds, double seconds) {
  constexpr double kLeast = 1e-6;  // of a clock that may show 0
  return static_cast<int>(std::max(1.0, wanted_seconds / std::max(seconds, kLeast)));
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

ProductTimer::Choice ProductTimer::fastest(const std::vector<NamedWay>& ways, const Demand& demand) const {
  const std::vector<Timed> times = timed_in_bursts(ways);
  std::vector<Timed> best = finalists(times, demand);
  if (best.empty()) return {times.front().way, false};
  if (best.size() > 1) {
    time_sustained(best);
    std::ranges::stable_sort(best, {}, &Timed::seconds);
  }
  return {best.front().way};
}

/// In turns, of which the first does not count, so that a clock that falls meanwhile is fair. What a single run shows to be far
/// slower is not timed again and stays behind the others, as that run was at another clock.
std::vector<ProductTimer::Timed> ProductTimer::timed_in_bursts(const std::vector<NamedWay>& ways) const {
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
  const int runs = std::min(runs_of(kBurst, least), kMostRunsOfBurst);
  for (int turn = 0; close.size() > 1 && turn < kTurns; ++turn) {
    for (Timed& timed : close) {
      const double now = seconds_of(timed.way, runs);
      timed.seconds = turn < 2 ? now : std::min(timed.seconds, now);
    }
  }
  std::ranges::stable_sort(close, {}, &Timed::seconds);
  return times;
}

std::vector<ProductTimer::Timed> ProductTimer::finalists(const std::vector<Timed>& sorted,
                                                         const Demand& demand) const {
  const bool sustained = demand.timing == Timing::sustained && sorted.front().seconds >= kLimitedByPower;
  const std::size_t wanted = sustained ? kFinalists : 1;
  std::vector<Timed> best;
  for (const Timed& timed : sorted) {
    if (best.size() == wanted || (!best.empty() && timed.seconds > kClose * best.front().seconds)) break;
    if (!demand.must_repeat || repeats_its_bits(timed.way)) best.push_back(timed);
  }
  return best;
}

/// Forwards and backwards, so that one that comes later has no worse of a GPU that gets warmer.
void ProductTimer::time_sustained(std::vector<Timed>& finalists) const {
  const auto sustained = [&](const Timed& timed) {
    seconds_of(timed.way, runs_of(kSettling, timed.seconds));
    return seconds_of(timed.way, runs_of(kSustained, timed.seconds));
  };
  std::vector<double> forwards, backwards;
  for (auto timed = finalists.begin(); timed != finalists.end(); ++timed)
    forwards.push_back(sustained(*timed));
  for (auto timed = finalists.rbegin(); timed != finalists.rend(); ++timed)
    backwards.push_back(sustained(*timed));
  for (std::size_t i = 0; i < finalists.size(); ++i)
    finalists[i].seconds = (forwards[i] + backwards[finalists.size() - 1 - i]) / 2;
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
