// SPDX-License-Identifier: Apache-2.0
// Which rank has which GPU.
#include <algorithm>
#include <span>
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
  int node = 0;
  std::string host;
  std::vector<std::string> bus_ids, identities;  ///< of the GPUs that are visible; GpuProperties::identity()
  std::size_t index = 0;                         ///< of the rank's own among these; choose_gpus() says

  auto members() { return std::tie(node, host, bus_ids, identities); }
  int gpus() const { return static_cast<int>(identities.size()); }
  const std::string& identity() const { return identities[index]; }
  bool same_gpu(const Seat& other) const { return node == other.node && identity() == other.identity(); }
};

/// Ranks that see the same GPUs take one after the other, in their order; where a rank sees others than its neighbours, as batch
/// systems arrange it that bind GPUs to sockets, it takes one that no rank before it has.
void choose_gpus(std::vector<Seat>& seats) {
  for (auto seat = seats.begin(); seat != seats.end(); ++seat) {
    const auto before = std::span(seats.begin(), seat);
    const auto like = std::ranges::count_if(before, [&](const Seat& other) {
      return other.node == seat->node && other.identities == seat->identities;
    });
    const std::size_t count = seat->identities.size(), first = static_cast<std::size_t>(like) % count;
    seat->index = first;
    for (std::size_t i = 0; i < count; ++i) {
      seat->index = (first + i) % count;
      if (std::ranges::none_of(before, [&](const Seat& other) { return other.same_gpu(*seat); })) break;
      seat->index = first;  // all are taken
    }
  }
}

void require_own_gpus(const std::vector<Seat>& seats) {
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    const auto other = std::find_if(seats.begin(), seats.begin() + static_cast<std::ptrdiff_t>(rank),
                                    [&](const Seat& seat) { return seat.same_gpu(seats[rank]); });
    if (&*other == &seats[rank]) continue;
    const auto usual = std::ranges::max_element(seats, {}, &Seat::gpus);
    if (usual->gpus() > seats[rank].gpus())
      throw CommonError(
          fmt::format("{} sees {}, and {} sees {}: there is no GPU of its own for each rank",
                      format_rank(static_cast<int>(rank), seats[rank].host), count(seats[rank].gpus(), "GPU"),
                      format_rank(static_cast<int>(usual - seats.begin()), usual->host), usual->gpus()));
    throw ConfigError(
        {.problem =
             fmt::format("ranks {} and {} on {} would share GPU {}, as rank {} sees {}",
                         other - seats.begin(), rank, seats[rank].host,
                         seats[rank].bus_ids[seats[rank].index], rank, count(seats[rank].gpus(), "GPU")),
         .remedy =
             "start no more ranks on a node than it has GPUs (or set {share_gpu} = true, which is slow and "
             "for tests)"});
  }
}

}  // namespace

GpuOfRank gpu_of_rank(World& world, const std::vector<device::GpuProperties>& gpus, bool share_gpu) {
  require(!gpus.empty(), "a GPU that this rank sees");
  const Topology& topology = world.topology();
  Seat visible{.node = topology.node, .host = topology.host, .bus_ids = {}, .identities = {}};
  for (const auto& gpu : gpus) {
    visible.bus_ids.push_back(gpu.bus_id);
    visible.identities.push_back(gpu.identity());
  }
  auto seats = all_gather_value(world, visible);
  choose_gpus(seats);
  if (!share_gpu) require_own_gpus(seats);
  const Seat& own = seats[static_cast<std::size_t>(world.rank())];
  const auto ranks = std::ranges::count_if(seats, [&](const Seat& seat) { return seat.same_gpu(own); });
  return {.index = static_cast<int>(own.index), .ranks = static_cast<int>(ranks)};
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
