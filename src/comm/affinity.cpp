// SPDX-License-Identifier: Apache-2.0
#include "comm/affinity.hpp"

#include <algorithm>
#include <cerrno>

namespace llampi::comm {
namespace {

constexpr std::size_t kBits = 8 * sizeof(unsigned long);

}  // namespace

CpuSet::CpuSet(int cpus) : words_(static_cast<std::size_t>(std::max(cpus, CPU_SETSIZE)) / kBits + 1) {}

CpuSet::CpuSet(const Cpus& cpus) : CpuSet(cpus.empty() ? 0 : *std::ranges::max_element(cpus)) {
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), bytes(), get());
}

Cpus CpuSet::cpus() {
  Cpus found;
  for (std::size_t cpu = 0; cpu < words_.size() * kBits; ++cpu) {
    if (CPU_ISSET_S(cpu, bytes(), get())) found.push_back(static_cast<int>(cpu));
  }
  return found;
}

Cpus current_cpus() {
  constexpr int kMostCpus = 1 << 20;
  for (int cpus = CPU_SETSIZE; cpus <= kMostCpus; cpus *= 2) {
    CpuSet set(cpus);
    if (sched_getaffinity(0, set.bytes(), set.get()) == 0) return set.cpus();
    if (errno != EINVAL) break;  // it is EINVAL where the set is too small
  }
  return {};
}

}  // namespace llampi::comm
