// SPDX-License-Identifier: Apache-2.0
#include "health/watchers.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/process.hpp"

namespace llampi::health {

namespace {

/// What the ranks tell each other.
struct Introduction {
  std::string host, process_namespace;
  std::int64_t pid = 0;
  int node = 0;

  auto members() { return std::tie(host, process_namespace, pid, node); }
};

}  // namespace

std::vector<RankProcess> exchange_processes(comm::World& world) {
  const Introduction own{world.topology().host, process_namespace(), ::getpid(), world.topology().node};
  std::vector<RankProcess> processes;
  for (const auto& [host, space, pid, node] : comm::all_gather_value(world, own))
    processes.push_back({host, space.empty() ? "" : fmt::format("{} {} {}", host, node, space), pid, node});
  return processes;
}

std::vector<int> choose_monitors(const std::vector<RankProcess>& ranks) {
  if (ranks.size() == 1) return {0};
  const auto other =
      std::find_if(ranks.begin(), ranks.end(), [&](const auto& rank) { return rank.node != ranks[0].node; });
  return {0, other == ranks.end() ? 1 : static_cast<int>(other - ranks.begin())};
}

double heartbeat_interval(int ranks, double seconds, double longest) {
  return std::min(std::max(seconds, kSpeakingSeconds * ranks / kSpeakers), std::max(seconds, longest));
}

double heartbeat_delay(int rank, int ranks, double interval) {
  return ranks > kSpeakers ? interval * rank / ranks : 0;
}

double report_delay(int rank) {
  const int turn = rank / kSpeakers;
  return kSpeakingSeconds * turn;
}

int neighbour_after(const std::vector<RankProcess>& ranks, int rank, int neighbour) {
  const auto count = static_cast<int>(ranks.size());
  const std::string& machine = ranks[static_cast<std::size_t>(rank)].machine;
  if (machine.empty()) return -1;
  for (int other = (neighbour + 1) % count; other != rank; other = (other + 1) % count) {
    if (ranks[static_cast<std::size_t>(other)].machine == machine) return other;
  }
  return -1;
}

int neighbour_of(const std::vector<RankProcess>& ranks, int rank) {
  const int other = neighbour_after(ranks, rank, rank);
  return other < 0 || process_state(ranks[static_cast<std::size_t>(other)].pid) == 0 ? -1 : other;
}

}  // namespace llampi::health
