// SPDX-License-Identifier: Apache-2.0
#include "llampi/selfcheck/speed.hpp"

#include <algorithm>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/placement.hpp"
#include "llampi/core/philox.hpp"

namespace llampi::selfcheck {
namespace {

constexpr device::Stream kExchange = device::Stream::urgent(0, "exchange");
constexpr device::Stream kFromHost = device::Stream::other(0, "from host"),
                         kToHost = device::Stream::other(1, "to host");
constexpr int kMeasurements = 3;  // at most, while something is slow
constexpr int kRounds = 5;        // of a measurement

constexpr double kSecondsOfRound = 5e-3;
constexpr double kFastGpu = 1e-3;  // seconds of the small product

/// x weight^T
struct Product {
  std::int64_t rows = 512, inner = 1024, columns = 1024;
};
/// For GPUs, of which the small one uses a part only.
constexpr Product kLarge{.rows = 4096, .inner = 8192, .columns = 8192};

class TimedProduct {
 public:
  TimedProduct(device::Device& device, const Product& product, DType dtype) : device_(device) {
    if (const std::int64_t bytes = device.sizes().shared_workspace(); bytes > 0)
      device.set_workspace(make(1, bytes / size_of(DType::int32), DType::int32));
    x_ = fill(product.rows, product.inner, dtype);
    weight_ = fill(product.columns, product.inner, dtype);
    y_ = make(product.rows, product.columns, dtype);
  }

  double seconds(int repeats, const Clock& clock) {
    const double begin = clock();
    for (int i = 0; i < repeats; ++i) device_.run(device::op::Linear{.x = x_, .weight = weight_, .y = y_});
    device_.synchronize(device::Stream::compute);
    return clock() - begin;
  }

 private:
  Tensor make(std::int64_t rows, std::int64_t columns, DType dtype) {
    memory_.push_back(device_.allocate(rows * columns * size_of(dtype)));
    return {memory_.back().data(), dtype, rows, columns};
  }
  /// Random numbers: a GPU takes less power for zeros, and is faster.
  Tensor fill(std::int64_t rows, std::int64_t columns, DType dtype) {
    const Tensor tensor = make(rows, columns, dtype);
    device_.run(device::op::RandomNormal{.stream = RandomStream(0, "a product to be timed"),
                                         .first = 0,
                                         .standard_deviation = 1,
                                         .out = {tensor.data, dtype, 1, rows * columns}});
    return tensor;
  }

  device::Device& device_;
  std::vector<device::Memory> memory_;
  Tensor x_, weight_, y_;
};

/// Seconds of one exchange with the other rank of a pair.
double time_exchange(const comm::Compute& compute, const std::vector<int>& pair, const Clock& clock) {
  const auto group = compute.world().group(pair, {kExchange});
  // Of the device: World::allocate() is collective over all ranks, and this is not.
  const device::Memory memory = compute.device().allocate(2 * kMessageBytes);
  const Tensor whole{memory.data(), DType::float32, 1, 2 * kMessageBytes / size_of(DType::float32)};
  const std::int64_t half = whole.elements() / 2;
  const Tensor shard = whole.slice(group->rank() * half, (group->rank() + 1) * half);
  std::vector<double> seconds;
  for (int round = 0; round <= kRounds; ++round) {
    const double begin = clock();
    group->all_gather(shard, whole, kExchange)->wait(device::Stream::host);
    if (round > 0) seconds.push_back(clock() - begin);  // the first one connects
  }
  return median(seconds);
}

/// World ranks that exchange, and what their ends are called in the result.
struct Pair {
  std::vector<int> ranks;
  int a = 0, b = 0;
};
using Round = std::vector<Pair>;

std::vector<Link> measure(comm::World& world, const comm::Compute& compute, const std::vector<Round>& rounds,
                          const std::function<void()>& progress, const Clock& clock) {
  std::vector<Link> own;
  for (const auto& round : rounds) {
    progress();
    for (const auto& pair : round) {
      if (std::count(pair.ranks.begin(), pair.ranks.end(), world.rank()) == 0) continue;
      const double seconds = time_exchange(compute, pair.ranks, clock);
      if (world.rank() == pair.ranks.front())
        own.push_back({pair.a, pair.b, static_cast<double>(kMessageBytes) / seconds});
    }
    world.barrier();
  }
  std::vector<Link> all;
  for (const auto& links : comm::all_gather_value(world, own))
    all.insert(all.end(), links.begin(), links.end());
  std::sort(all.begin(), all.end(), [](const Link& one, const Link& other) {
    return std::tie(one.a, one.b) < std::tie(other.a, other.b);
  });
  return all;
}

bool some_are_slow(const std::vector<Link>& links) {
  const SlowLinks slow = find_slow_links(links);
  return !slow.ends.empty() || !slow.links.empty();
}

/// The best of several measurements, as long as some links are slow.
std::vector<Link> measure_patiently(comm::World& world, const comm::Compute& compute,
                                    const std::vector<Round>& rounds, const std::function<void()>& progress,
                                    const Clock& clock) {
  std::vector<Link> best = measure(world, compute, rounds, progress, clock);
  for (int i = 1; i < kMeasurements && some_are_slow(best); ++i) {
    const auto again = measure(world, compute, rounds, progress, clock);
    for (std::size_t link = 0; link < best.size(); ++link)
      best[link].bytes_per_second = std::max(best[link].bytes_per_second, again[link].bytes_per_second);
  }
  return best;
}

}  // namespace

std::vector<double> time_products(comm::World& world, const comm::Compute& compute, DType dtype,
                                  const Clock& clock) {
  std::unique_ptr<TimedProduct> product;
  // Seconds on the fastest rank. The first time, libraries load.
  const auto make = [&](const Product& shape) {
    double fastest = 0;
    comm::agree(world, [&] {
      product = std::make_unique<TimedProduct>(compute.device(), shape, dtype);
      product->seconds(1, clock);
      fastest = -product->seconds(1, clock);
    });
    return -comm::max_over_ranks(world, fastest);
  };
  double fastest = make(Product());
  if (compute.on_gpu() && fastest < kFastGpu) fastest = make(kLarge);
  const int repeats = std::clamp(static_cast<int>(kSecondsOfRound / fastest), 1, 1000);
  std::vector<double> seconds;
  double shortest = 0;
  for (int i = 0; i < kMeasurements && (i == 0 || !slow_ranks(seconds).empty()); ++i) {
    for (int round = 0; round < kRounds; ++round) {
      world.barrier();
      const double now = product->seconds(repeats, clock) / repeats;
      shortest = shortest == 0 ? now : std::min(shortest, now);
    }
    seconds = comm::all_gather_value(world, shortest);
  }
  return seconds;
}

LinkSpeeds measure_links(comm::World& world, const comm::Compute& compute,
                         const std::function<void()>& progress, const Clock& clock) {
  const auto nodes = comm::members_by_node(world.topology().node_of_rank);
  std::vector<Round> between;
  for (const auto& round : rounds_of_pairs(static_cast<int>(nodes.size()))) {
    auto& pairs = between.emplace_back();
    for (const auto& [a, b] : round)
      pairs.push_back(
          {{nodes[static_cast<std::size_t>(a)].front(), nodes[static_cast<std::size_t>(b)].front()}, a, b});
  }
  std::vector<Round> inside;
  for (const auto& ranks : nodes) {
    const auto rounds = rounds_of_pairs(static_cast<int>(ranks.size()));
    inside.resize(std::max(inside.size(), rounds.size()));
    for (std::size_t r = 0; r < rounds.size(); ++r) {
      for (const auto& [a, b] : rounds[r]) {
        const int one = ranks[static_cast<std::size_t>(a)], other = ranks[static_cast<std::size_t>(b)];
        inside[r].push_back({{one, other}, one, other});
      }
    }
  }
  return {measure_patiently(world, compute, between, progress, clock),
          measure_patiently(world, compute, inside, progress, clock)};
}

std::vector<double> measure_host_copies(comm::World& world, const comm::Compute& compute,
                                        const Clock& clock) {
  constexpr std::int64_t kBytes = std::int64_t{32} << 20;
  device::Device& device = compute.device();
  device::Memory on_device, on_host;
  comm::agree(world, [&] {
    on_device = device.allocate(2 * kBytes);
    on_host = device.allocate_host(2 * kBytes);
  });
  const Tensor both{on_device.data(), DType::float32, 1, 2 * kBytes / size_of(DType::float32)};
  const std::int64_t half = both.elements() / 2;
  double shortest = 0;
  for (int round = 0; round <= kRounds; ++round) {
    world.barrier();
    const double begin = clock();
    device.upload(both.slice(0, half), on_host.data(), kFromHost);
    device.download(on_host.data() + kBytes, both.slice(half, 2 * half), kToHost);
    device.synchronize(kFromHost);
    device.synchronize(kToHost);
    const double now = clock() - begin;
    if (round > 0) shortest = round == 1 ? now : std::min(shortest, now);  // the first one touches the memory
  }
  return comm::all_gather_value(world, static_cast<double>(kBytes) / shortest);
}

}  // namespace llampi::selfcheck
