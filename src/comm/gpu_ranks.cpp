// SPDX-License-Identifier: Apache-2.0
// Which rank has which GPU.
#include <algorithm>
#include <tuple>
#include <utility>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/comm/nccl.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::comm {
namespace {

/// What the ranks tell each other.
struct Seat {
  int gpus = 0;  ///< visible
  int node = 0;
  std::string host;
  std::string bus_id = {};
  std::string identity = {};  ///< GpuProperties::identity()

  auto members() { return std::tie(gpus, node, host, bus_id, identity); }
  bool same_gpu(const Seat& other) const { return node == other.node && identity == other.identity; }
};

void require_own_gpus(const std::vector<Seat>& seats) {
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    const auto other = std::find_if(seats.begin(), seats.begin() + static_cast<std::ptrdiff_t>(rank),
                                    [&](const Seat& seat) { return seat.same_gpu(seats[rank]); });
    if (&*other == &seats[rank]) continue;
    const auto usual = std::ranges::max_element(seats, {}, &Seat::gpus);
    if (usual->gpus > seats[rank].gpus)
      throw CommonError(
          fmt::format("{} sees {}, and {} sees {}: there is no GPU of its own for each rank",
                      format_rank(static_cast<int>(rank), seats[rank].host), count(seats[rank].gpus, "GPU"),
                      format_rank(static_cast<int>(usual - seats.begin()), usual->host), usual->gpus));
    throw ConfigError(
        {.problem = fmt::format("ranks {} and {} on {} would share GPU {}, as rank {} sees {}",
                                other - seats.begin(), rank, seats[rank].host, seats[rank].bus_id, rank,
                                count(seats[rank].gpus, "GPU")),
         .remedy =
             "start no more ranks on a node than it has GPUs (or set {share_gpu} = true, which is slow and "
             "for tests)"});
  }
}

}  // namespace

GpuOfRank gpu_of_rank(World& world, const std::vector<device::GpuProperties>& gpus, bool share_gpu) {
  require(!gpus.empty(), "a GPU that this rank sees");
  const Topology& topology = world.topology();
  GpuOfRank result{.index = topology.local_rank % static_cast<int>(gpus.size())};
  const device::GpuProperties& gpu = gpus[static_cast<std::size_t>(result.index)];
  Seat own{.gpus = static_cast<int>(gpus.size()),
           .node = topology.node,
           .host = topology.host,
           .bus_id = gpu.bus_id,
           .identity = gpu.identity()};
  const auto seats = all_gather_value(world, own);
  if (!share_gpu) require_own_gpus(seats);
  result.ranks = static_cast<int>(
      std::count_if(seats.begin(), seats.end(), [&](const Seat& seat) { return seat.same_gpu(own); }));
  return result;
}

std::string gpu_table(World& world, const std::vector<device::GpuProperties>& gpus, int gpu) {
  const device::GpuProperties& own = gpus.at(static_cast<std::size_t>(gpu));
  std::vector<std::vector<std::string>> rows = {{"rank", "host", "GPU", "bus id", "name"}};
  const std::vector<std::string> cells = {std::to_string(world.rank()), world.topology().host,
                                          std::to_string(gpu), own.bus_id, own.name};
  for (auto& row : all_gather_value(world, cells)) rows.push_back(std::move(row));
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row.at(i).size());
  }
  std::string table;
  for (const auto& row : rows) {
    table += fmt::format("{}{:>{}}  {:<{}}  {:>{}}  {:<{}}  {}", table.empty() ? "" : "\n", row[0], widths[0],
                         row[1], widths[1], row[2], widths[2], row[3], widths[3], row[4]);
  }
  return table;
}

}  // namespace llampi::comm
