// SPDX-License-Identifier: Apache-2.0
// All-gather, reduce-scatter and all-reduce of all ranks, as nccl-tests measure them.
#include <algorithm>
#include <numeric>
#include <vector>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/workspace.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/text.hpp"
#include "llampi/fsdp/streams.hpp"
#include "measure/bench.hpp"

namespace llampi::measure {
namespace {

using Index = std::int64_t;

constexpr int kFewestCollectives = 3, kMostCollectives = 200;
constexpr Index kSizes[] = {Index{16} << 10, Index{1} << 20, Index{8} << 20, Index{32} << 20};  // bytes

}  // namespace

void measure_collectives(const Bench& bench) {
  comm::World& world = bench.compute.world();
  const int ranks = world.size();
  if (ranks == 1) return;
  device::Device& device = bench.compute.device();
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  const auto group = world.group(members, {fsdp::kReduceStream});
  const auto reduction = bench.config.fsdp.reduction;
  for (const Index size : kSizes) {
    const Index part = std::max<Index>(size / 4 / ranks, 1), elements = part * ranks;
    const Index scratch_bytes = std::max<Index>(
        4,
        std::max(comm::reduce_scatter_workspace(world.backend(), elements, ranks, DType::float32, reduction),
                 comm::all_reduce_workspace(world.backend(), elements, ranks, DType::float32, reduction)));
    device::Memory memory, scratch;
    comm::agree(bench.world, [&] { memory = world.allocate((elements + part) * 4); });
    comm::agree(bench.world, [&] { scratch = world.allocate(scratch_bytes); });
    const Tensor whole{memory.data(), DType::float32, 1, elements},
        shard{memory.data() + elements * 4, DType::float32, 1, part},
        workspace{scratch.data(), DType::float32, 1, scratch.bytes() / 4};
    const auto measure = [&](const char* name, double bus_share, const auto& start) {
      const auto run = [&] {
        bench.world.barrier();
        const double begin = steady_seconds();
        const auto work = start();
        work->wait(device::Stream::compute);
        device.synchronize(device::Stream::compute);
        // So that all ranks repeat it equally often.
        return comm::max_over_ranks(bench.world, steady_seconds() - begin);
      };
      run();
      double shortest = run(), total = 0;
      for (int i = 0; i < kFewestCollectives || (total < bench.settings.seconds && i < kMostCollectives);
           ++i) {
        const double seconds = run();
        shortest = std::min(shortest, seconds);
        total += seconds;
      }
      const double rate = static_cast<double>(elements) * 4 / shortest * 1e-9;
      bench.rows.push_back({.group = "collective",
                            .name = fmt::format("{} {}", name, format_bytes(size)),
                            .seconds = shortest,
                            .rate = rate,
                            .unit = "GB/s",
                            .bus_rate = rate * bus_share});
    };
    const double others = static_cast<double>(ranks - 1) / ranks;
    measure("all_gather", others, [&] { return group->all_gather(shard, whole, fsdp::kReduceStream); });
    measure("reduce_scatter", others, [&] {
      return group->reduce_scatter(whole, shard, Accumulate::no, workspace, fsdp::kReduceStream);
    });
    measure("all_reduce", 2 * others, [&] {
      return group->all_reduce(whole, whole, comm::ReduceOp::sum, Accumulate::no, workspace,
                               fsdp::kReduceStream);
    });
  }
}

}  // namespace llampi::measure
