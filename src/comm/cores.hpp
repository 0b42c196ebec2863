// SPDX-License-Identifier: Apache-2.0
// How the cores of a node are divided among its ranks, as functions of what is known of both.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace llampi::comm {

/// Logical CPUs (hardware threads) by their numbers in the operating system, in ascending order.
using Cpus = std::vector<int>;

struct Core {
  Cpus cpus;
  int domain = 0;  ///< of NUMA
};

/// "0-3,8", "" for none; and back. parse_cpus() takes only what format_cpus() writes.
std::string format_cpus(const Cpus& cpus);
Cpus parse_cpus(const std::string& text);

bool overlap(const Cpus& a, const Cpus& b);
Cpus common(const Cpus& a, const Cpus& b);

struct RankOnNode {
  Cpus usable;  ///< where it may run
  int threads = 1;
  bool has_gpu = false;
  bool by_openmp = false;  ///< OpenMP's variables bind its threads
  Cpus near = {};          ///< nearest to its GPU; empty: not known
};

/// How a group of ranks with the same usable CPUs is to run.
enum class Sharing {
  alone,     ///< one rank, and no other may run where it does
  divide,    ///< they can have CPUs of their own
  openmp,    ///< their threads are bound by OpenMP
  crowded,   ///< more threads than CPUs
  overlaps,  ///< some, not all, of the CPUs are another group's too
};

struct SharedCpus {
  std::vector<int> ranks;  ///< indices into the ranks of the node
  Sharing sharing = Sharing::alone;
};

/// The ranks of a node by what they may run on. One rank that has a GPU is to divide, too: its cores are then
/// those near the GPU.
std::vector<SharedCpus> shared_cpus(const std::vector<RankOnNode>& ranks);

struct Division {
  std::vector<Cpus> cpus;  ///< of each rank
  bool near_gpus = false;
};

/// Divides among `ranks`, which have the same usable CPUs, the `cores` of their node. The first that gives each
/// rank as many CPUs as it has threads: the cores near its GPU; whole NUMA domains, or cores of one of them; as
/// many cores to each; as many CPUs to each. None if there are too few.
/// @param cores of the node, neighbours beside each other
std::optional<Division> divide_cores(const std::vector<Core>& cores, const std::vector<RankOnNode>& ranks);

}  // namespace llampi::comm
