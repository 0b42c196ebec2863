// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/binding.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "comm/affinity.hpp"
#include "comm/cores.hpp"
#include "comm/node_topology.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/core/text.hpp"

namespace llampi::comm {
namespace {

namespace fs = std::filesystem;

/// Every thread of this process. 0, or the error of the calling thread; others may have ended meanwhile.
int bind_threads(const Cpus& cpus) noexcept {
  CpuSet set(cpus);
  if (sched_setaffinity(0, set.bytes(), set.get()) != 0) return errno;
  std::error_code ignored;
  for (fs::directory_iterator task("/proc/self/task", ignored), end; !ignored && task != end;
       task.increment(ignored)) {
    const std::string name = task->path().filename().string();
    const auto thread = parse_number<pid_t>(name);
    if (thread && *thread > 0) static_cast<void>(sched_setaffinity(*thread, set.bytes(), set.get()));
  }
  return 0;
}

/// libgomp and others bind threads by themselves where one of these is set.
bool openmp_binds() {
  const auto given = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  const char* const bind = std::getenv("OMP_PROC_BIND");
  const std::string_view word = bind == nullptr ? "" : bind;
  if (word == "false" || word == "FALSE") return false;
  return !word.empty() || given("OMP_PLACES") || given("GOMP_CPU_AFFINITY") || given("KMP_AFFINITY");
}

/// What a rank tells the others of itself.
struct RankCores {
  int node = 0;
  int threads = 1;
  bool by_openmp = false;
  std::string usable = {}, bus_id = {}, host = {};

  auto members() { return std::tie(node, threads, by_openmp, usable, bus_id, host); }
};

/// What the first rank of a node tells the ranks of all nodes.
struct NodePlan {
  std::vector<std::string> cpus = {};  ///< of its ranks, in order; empty: as it is
  bool near_gpus = false;
  std::string networks = {};  ///< "mlx5_0 (rank 0), mlx5_1 (rank 1)"
  std::string failure = {};

  auto members() { return std::tie(cpus, near_gpus, networks, failure); }
};

struct Node {
  std::vector<int> ranks;  ///< of the world
  std::vector<RankOnNode> on_node;
  std::vector<SharedCpus> shared;
  std::vector<Cpus> cpus;  ///< where they run in the end
  bool near_gpus = false;
};

std::vector<Node> nodes_of(const std::vector<RankCores>& rank_cores, int count) {
  std::vector<Node> nodes(static_cast<std::size_t>(count));
  for (std::size_t rank = 0; rank < rank_cores.size(); ++rank) {
    const RankCores& cores = rank_cores[rank];
    Node& node = nodes.at(static_cast<std::size_t>(cores.node));
    node.ranks.push_back(static_cast<int>(rank));
    node.on_node.push_back({.usable = parse_cpus(cores.usable),
                            .threads = cores.threads,
                            .has_gpu = !cores.bus_id.empty(),
                            .by_openmp = cores.by_openmp});
    node.cpus.push_back(node.on_node.back().usable);
  }
  for (Node& node : nodes) node.shared = shared_cpus(node.on_node);
  return nodes;
}

bool divides(const Node& node) {
  return std::any_of(node.shared.begin(), node.shared.end(),
                     [](const SharedCpus& group) { return group.sharing == Sharing::divide; });
}

std::string networks_of(const NodeTopology& topology, const Node& node,
                        const std::vector<RankCores>& rank_cores) {
  std::vector<std::pair<std::string, std::vector<int>>> ranks_of;  // by the names of their devices
  for (std::size_t i = 0; i < node.ranks.size(); ++i) {
    const std::string& bus_id = rank_cores[static_cast<std::size_t>(node.ranks[i])].bus_id;
    auto names = topology.networks_near_device(bus_id);
    if (names.empty()) names = topology.networks_near(node.cpus[i]);
    if (names.empty()) continue;
    const std::string text = fmt::format("{}", fmt::join(names, " or "));
    if (ranks_of.empty() || ranks_of.back().first != text) ranks_of.push_back({text, {}});
    ranks_of.back().second.push_back(node.ranks[i]);
  }
  std::string text;
  for (const auto& [names, ranks] : ranks_of)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", names, format_ranks(ranks));
  return text;
}

void divide(const NodeTopology& topology, const std::vector<RankCores>& rank_cores, Node& node,
            NodePlan& plan) {
  plan.cpus.resize(node.ranks.size());
  for (const SharedCpus& group : node.shared) {
    if (group.sharing != Sharing::divide) continue;
    std::vector<RankOnNode> ranks;
    for (const int member : group.ranks) {
      const auto i = static_cast<std::size_t>(member);
      ranks.push_back(node.on_node[i]);
      ranks.back().near = topology.near_device(rank_cores[static_cast<std::size_t>(node.ranks[i])].bus_id);
    }
    const auto division = divide_cores(topology.cores(), ranks);
    if (!division) continue;
    plan.near_gpus = plan.near_gpus || division->near_gpus;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto member = static_cast<std::size_t>(group.ranks[i]);
      if (division->cpus[i] == node.on_node[member].usable) continue;
      plan.cpus[member] = format_cpus(division->cpus[i]);
      node.cpus[member] = division->cpus[i];
    }
  }
}

/// Of the first rank of a node, with hwloc. Does not throw: a run goes on without.
NodePlan plan_of_node(Node node, const std::vector<RankCores>& rank_cores, bool divides_cores,
                      bool names_networks) {
  NodePlan plan;
  try {
    const NodeTopology topology;
    if (divides_cores) divide(topology, rank_cores, node, plan);
    if (names_networks) plan.networks = networks_of(topology, node, rank_cores);
  } catch (const std::exception& error) {
    plan.failure = error.what();
  }
  return plan;
}

/// Smallest and largest.
struct Extent {
  std::size_t low = SIZE_MAX, high = 0;

  void add(std::size_t value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  std::string count(const char* thing) const {
    const std::string number = low == high ? fmt::format("{}", low) : fmt::format("{}-{}", low, high);
    return fmt::format("{} {}{}", number, thing, high == 1 ? "" : "s");
  }
};

/// What a logical CPU is on this machine.
const char* name_of_cpu() {
  std::ifstream file("/sys/devices/system/cpu/smt/active");
  return file.get() == '1' ? "hardware thread" : "core";
}

std::string how_bound(const Node& node, const SharedCpus& group, const std::vector<std::string>& bound) {
  const bool by_us = std::any_of(group.ranks.begin(), group.ranks.end(), [&](int rank) {
    return !bound.empty() && !bound[static_cast<std::size_t>(rank)].empty();
  });
  if (by_us) return node.near_gpus ? "bound by llampi near their GPUs" : "bound by llampi";
  if (group.sharing == Sharing::openmp) return "bound by OpenMP";
  const bool own = group.ranks.size() == 1 && group.sharing != Sharing::overlaps;
  return own && node.ranks.size() > 1 ? "bound by the launcher" : "not bound";
}

std::string summary(const std::vector<Node>& nodes, const std::vector<NodePlan>& plans,
                    const std::string& note) {
  Extent ranks, cpus;
  std::set<std::string> how;
  bool own = true;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const Node& node = nodes[n];
    ranks.add(node.ranks.size());
    for (const Cpus& set : node.cpus) cpus.add(set.size());
    for (const SharedCpus& group : node.shared) {
      const auto [bound, is_new] =
          how.insert(how_bound(node, group, plans.empty() ? std::vector<std::string>() : plans[n].cpus));
      own = own && (group.ranks.size() == 1 || *bound != "not bound");
    }
  }
  return fmt::format("cores: {} per node, {} {}, {}{}", ranks.count("rank"), cpus.count(name_of_cpu()),
                     own ? "each" : "shared", fmt::join(how, " or "), note);
}

/// What makes a job slow without a word, of the first node where it is so.
void warn(const std::vector<Node>& nodes, const std::vector<RankCores>& rank_cores, const Log& log) {
  for (const Node& node : nodes) {
    for (const SharedCpus& group : node.shared) {
      std::vector<int> ranks;
      int threads = 0;
      for (const int member : group.ranks) {
        ranks.push_back(node.ranks[static_cast<std::size_t>(member)]);
        threads += node.on_node[static_cast<std::size_t>(member)].threads;
      }
      const auto& host = rank_cores[static_cast<std::size_t>(ranks.front())].host;
      const auto cpus = node.on_node[static_cast<std::size_t>(group.ranks.front())].usable;
      if (group.sharing == Sharing::crowded) {
        log.warning(
            "too few cores for {} on {}: {} share {} ({}), which is slow; start fewer ranks or threads "
            "or, if the launcher has bound them, bind to more cores (mpirun --bind-to none, srun --cpus-per-task)",
            format_ranks(ranks), host, count(threads, "thread"), count(std::ssize(cpus), name_of_cpu()),
            format_cpus(cpus));
        return;
      }
      if (group.sharing == Sharing::overlaps) {
        log.warning(
            "{} on {} may run on cores {}, and other ranks use some of these too; the launcher bound them so, and llampi "
            "does not change it: bind each rank to cores of its own (mpirun --bind-to core, srun --cpu-bind=cores)",
            format_ranks(ranks), host, format_cpus(cpus));
        return;
      }
    }
  }
}

/// What was decided for the ranks of all nodes, from the first rank of each. Collective.
std::vector<NodePlan> exchange_plans(World& world, std::vector<Node>& nodes,
                                     const std::vector<RankCores>& rank_cores, bool binds,
                                     bool names_networks) {
  const Topology& place = world.topology();
  const Node& own = nodes[static_cast<std::size_t>(place.node)];
  const bool divides_cores = binds && divides(own);
  const bool names = names_networks && place.node == 0;
  NodePlan plan;
  if (place.local_rank == 0 && (divides_cores || names))
    plan = plan_of_node(own, rank_cores, divides_cores, names);
  const auto all = all_gather_value(world, plan);
  std::vector<NodePlan> plans;
  for (Node& node : nodes) {
    plans.push_back(all[static_cast<std::size_t>(node.ranks.front())]);
    node.near_gpus = plans.back().near_gpus;
    for (std::size_t i = 0; i < plans.back().cpus.size(); ++i) {
      if (!plans.back().cpus[i].empty()) node.cpus[i] = parse_cpus(plans.back().cpus[i]);
    }
  }
  return plans;
}

/// Collective.
Binding bind_as_planned(World& world, const std::vector<NodePlan>& plans, const Log& log) {
  const Topology& place = world.topology();
  Binding binding;
  std::int64_t error = 0;
  const auto& cpus = plans[static_cast<std::size_t>(place.node)].cpus;
  if (!cpus.empty() && !cpus[static_cast<std::size_t>(place.local_rank)].empty()) {
    try {
      binding = Binding(parse_cpus(cpus[static_cast<std::size_t>(place.local_rank)]));
    } catch (const std::system_error& failed) {
      error = failed.code().value();
    }
  }
  error = max_over_ranks(world, error);
  if (error != 0) {
    log.warning(
        "some ranks could not be bound to cores ({}), as in a container that forbids it; they go on unbound",
        std::generic_category().message(static_cast<int>(error)));
  }
  for (const NodePlan& plan : plans) {
    if (plan.failure.empty()) continue;
    log.warning("ranks are not bound to cores, since those of a node could not be found out: {}",
                plan.failure);
    break;
  }
  return binding;
}

}  // namespace

Binding::Binding(const std::vector<int>& cores) : before_(current_cpus()) {
  const int error = bind_threads(cores);
  if (error == 0) return;
  before_.clear();
  throw std::system_error(error, std::generic_category());
}

Binding::Binding(Binding&& other) noexcept : before_(std::exchange(other.before_, {})) {}

Binding& Binding::operator=(Binding&& other) noexcept {
  if (this == &other) return *this;
  release();
  before_ = std::exchange(other.before_, {});
  return *this;
}

Binding::~Binding() { release(); }

void Binding::release() noexcept {
  if (!before_.empty()) bind_threads(before_);
  before_.clear();
}

Binding bind_ranks(World& world, const BindRequest& request, const Log& log) {
  const RankCores own{.node = world.topology().node,
                      .threads = request.threads,
                      .by_openmp = openmp_binds(),
                      .usable = format_cpus(current_cpus()),
                      .bus_id = request.bus_id,
                      .host = world.topology().host};
  const auto rank_cores = all_gather_value(world, own);
  auto nodes = nodes_of(rank_cores, world.topology().nodes);
  const bool binds = request.bind == Bind::automatic;
  const bool names_networks = broadcast_value(world, infiniband_devices() > 0);
  std::vector<NodePlan> plans;
  Binding binding;
  if (names_networks || (binds && std::any_of(nodes.begin(), nodes.end(), divides))) {
    plans = exchange_plans(world, nodes, rank_cores, binds, names_networks);
    binding = bind_as_planned(world, plans, log);
  }
  log.info("{}", summary(nodes, plans, binds ? "" : fmt::format(" ({} = none)", request.option)));
  if (!plans.empty() && !plans.front().networks.empty())
    log.info(
        "network: nearest InfiniBand devices: {}; NCCL chooses by GPUs, MPI by the cores on which a rank starts",
        plans.front().networks);
  warn(nodes, rank_cores, log);
  return binding;
}

}  // namespace llampi::comm
