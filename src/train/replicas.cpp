// SPDX-License-Identifier: Apache-2.0
#include "train/replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/fsdp/unit.hpp"
#include "llampi/io/block_sums.hpp"
#include "train/state_sums.hpp"

namespace llampi::train {
namespace {

using Sums = std::vector<std::uint32_t>;

/// Those that have not what the most have; all of them where no majority is.
std::vector<int> outvoted(const std::vector<int>& ranks, const std::vector<Sums>& sums) {
  std::map<Sums, std::vector<int>> parties;
  for (const int rank : ranks) parties[sums[static_cast<std::size_t>(rank)]].push_back(rank);
  std::vector<int> differing;
  for (const auto& [sum, party] : parties) {
    if (2 * party.size() <= ranks.size()) differing.insert(differing.end(), party.begin(), party.end());
  }
  std::sort(differing.begin(), differing.end());
  return parties.size() == 1 ? std::vector<int>{} : differing;
}

/// The first parameter of which two of these ranks have different parts.
std::size_t first_difference(const std::vector<int>& ranks, const std::vector<Sums>& sums) {
  const auto& first = sums[static_cast<std::size_t>(ranks.front())];
  std::size_t parameter = first.size();
  for (const int rank : ranks) {
    const auto& other = sums[static_cast<std::size_t>(rank)];
    const auto at = std::mismatch(first.begin(), first.end(), other.begin()).first - first.begin();
    parameter = std::min(parameter, static_cast<std::size_t>(at));
  }
  return parameter;
}

}  // namespace

std::string find_differing_replicas(comm::World& world, device::Device& device, const fsdp::Engine& engine) {
  const auto& mesh = engine.mesh();
  if (mesh.replica_count() == 1) return {};
  Sums own;
  const auto pieces = engine.pieces_held();  // collective
  comm::agree(world, [&] { own = state_sums(device, pieces, engine); });
  // Four bytes of each rank; the sums of all parameters only where they differ.
  const auto digests = comm::all_gather_value(world, io::crc32_of(std::as_bytes(std::span(own))));
  const auto groups = mesh.replicas();
  const bool all_equal = std::ranges::all_of(groups, [&](const auto& replicas) {
    return std::ranges::all_of(replicas, [&](int replica) {
      return digests[static_cast<std::size_t>(replica)] ==
             digests[static_cast<std::size_t>(replicas.front())];
    });
  });
  if (all_equal) return {};
  const auto sums = comm::all_gather_value(world, own);
  const auto hosts = world.all_gather(world.topology().host);
  const auto& units = engine.compiled().units;
  std::string text;
  for (const auto& replicas : groups) {
    const auto differing = outvoted(replicas, sums);
    if (differing.empty()) continue;
    const auto parameter = first_difference(replicas, sums);
    const int unit = fsdp::unit_of_parameter(units, engine.model().parameters().size())[parameter];
    std::vector<std::string> names;
    for (const int r : differing) names.push_back(comm::format_rank(r, hosts[static_cast<std::size_t>(r)]));
    text += fmt::format("{}{} {} from other replicas of the shard, first in {} (unit {})",
                        text.empty() ? "" : "; ", fmt::join(names, ", "),
                        names.size() == 1 ? "differs" : "differ", engine.model().parameters()[parameter].name,
                        units[static_cast<std::size_t>(unit)].name);
  }
  return text;
}

}  // namespace llampi::train
