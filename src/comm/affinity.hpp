// SPDX-License-Identifier: Apache-2.0
// The CPUs on which a thread may run, as the kernel tells and takes them.
#pragma once

#include <sched.h>

#include <cstddef>
#include <vector>

#include "comm/cores.hpp"

namespace llampi::comm {

/// The kernel's form of a set of CPUs; cpu_set_t alone has 1024.
class CpuSet {
 public:
  /// Empty. @param cpus that it has room for, at least
  explicit CpuSet(int cpus);
  explicit CpuSet(const Cpus& cpus);

  std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }
  cpu_set_t* get() { return reinterpret_cast<cpu_set_t*>(words_.data()); }
  Cpus cpus();

 private:
  std::vector<unsigned long> words_;
};

/// Of the calling thread; none if that cannot be known.
Cpus current_cpus();

}  // namespace llampi::comm
