// SPDX-License-Identifier: Apache-2.0
// Which cores of its node a rank runs on.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/core/words.hpp"

namespace llampi::comm {

/// automatic: ranks that share cores divide them among themselves; none: cores are left as they are.
enum class Bind : std::uint8_t { automatic, none };
constexpr auto word_table(Bind) {
  return std::to_array<Word<Bind>>({{Bind::automatic, "auto"}, {Bind::none, "none"}});
}

struct BindRequest {
  Bind bind = Bind::automatic;
  int threads = 1;                  ///< that this rank computes with
  std::string bus_id = {};          ///< of its GPU, "0000:17:00.0"; empty: it has none
  std::string option = "run.bind";  ///< by which the user chose, for messages
};

/// While it lives, every thread of this process runs on these cores, those included that are started meanwhile.
/// Then they may run again where they could before.
class Binding {
 public:
  Binding() = default;  ///< binds nothing
  /// @param cores logical CPUs by their numbers in the operating system, not empty
  /// @throws std::system_error where the operating system, or a container, does not let it
  explicit Binding(const std::vector<int>& cores);
  Binding(Binding&& other) noexcept;
  Binding& operator=(Binding&& other) noexcept;
  ~Binding();

  bool is_bound() const { return !before_.empty(); }

 private:
  void release() noexcept;

  std::vector<int> before_;
};

/// Collective. Gives this rank cores of its own where the launcher has not, and logs the placement of ranks and
/// cores on all nodes, and the InfiniBand device nearest to each rank of the first node.
///
/// Ranks that may run on the same cores divide them, so that each has at least a core per thread: within a
/// NUMA domain, and among the cores that are nearest to its GPU, where that is possible. Nothing is bound
/// where there are more threads than cores, where ranks share some of their cores only, and where OpenMP's
/// variables (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY) do it. What cannot be done is a warning.
/// The number of threads is what it was: ask for it first (threads.hpp).
Binding bind_ranks(World& world, const BindRequest& request, const Log& log);

}  // namespace llampi::comm
