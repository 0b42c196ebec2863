// SPDX-License-Identifier: Apache-2.0
#include "comm/near_network.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/affinity.hpp"

namespace llampi::comm {
namespace {

/// "8", or "8(x2)", which is Slurm's for two nodes of eight; not "8,7".
std::optional<int> number(const char* text) {
  if (text == nullptr) return std::nullopt;
  const std::string_view all = text;
  int value = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  const std::string_view rest = all.substr(static_cast<std::size_t>(end - all.data()));
  const bool same_on_all = rest.empty() || (rest.starts_with("(x") && rest.find(')') == rest.size() - 1);
  return error == std::errc() && same_on_all ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<PlaceOnNode> place_on_node(const std::function<const char*(const char*)>& variable) {
  constexpr std::pair<const char*, const char*> kLaunchers[] = {
      {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
      {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
      {"PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"}};
  for (const auto& [of_rank, of_ranks] : kLaunchers) {
    const auto rank = number(variable(of_rank)), ranks = number(variable(of_ranks));
    if (rank && ranks && *rank >= 0 && *rank < *ranks) return PlaceOnNode{*rank, *ranks};
  }
  return std::nullopt;
}

std::optional<Cpus> cores_to_start_on(const NodeTopology& node, const Cpus& usable, PlaceOnNode place) {
  const auto cores = node.cores();
  Cpus all;
  for (const Core& core : cores) all.insert(all.end(), core.cpus.begin(), core.cpus.end());
  std::sort(all.begin(), all.end());
  if (place.ranks < 2 || usable != all) return std::nullopt;
  const int threads = std::max(1, static_cast<int>(usable.size()) / place.ranks);
  const auto division = divide_cores(cores, std::vector<RankOnNode>(static_cast<std::size_t>(place.ranks),
                                                                    {.usable = usable, .threads = threads}));
  if (!division) return std::nullopt;
  return division->cpus[static_cast<std::size_t>(place.rank)];
}

Binding bind_while_mpi_starts() {
  if (infiniband_devices() < 2) return {};
  const auto place = place_on_node([](const char* name) { return std::getenv(name); });
  if (!place) return {};
  try {
    const auto cores = cores_to_start_on(NodeTopology(), current_cpus(), *place);
    return cores ? Binding(*cores) : Binding();
  } catch (const std::exception&) {  // MPI then chooses without; bind_ranks() says that it cannot bind
    return {};
  }
}

}  // namespace llampi::comm
