// SPDX-License-Identifier: Apache-2.0
#include "llampi/comm/threads.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "comm/affinity.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/core/error.hpp"

namespace llampi::comm {
namespace {

/// OMP_NUM_THREADS, of which the first number counts; 0 if it is not set.
int omp_num_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  int threads = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), threads);
  if (threads > kMostThreads)
    throw_user_error("OMP_NUM_THREADS = {} is more than {} threads for a rank; use fewer", text,
                     kMostThreads);
  return std::max(0, threads);
}

}  // namespace

int threads_per_rank(int asked, int sharing) {
  if (asked == 0) asked = omp_num_threads();
  if (asked > 0) return asked;
  return std::max(1, static_cast<int>(current_cpus().size()) / sharing);
}

int threads_per_rank(World& world, int asked) {
  // Ranks that were bound to cores of their own have different sets; unbound ones share one.
  const std::string mine = packed(current_cpus());
  const auto all = world.all_gather_on_node(mine);
  int threads = 0;
  agree(world, [&] {
    threads = threads_per_rank(asked, static_cast<int>(std::count(all.begin(), all.end(), mine)));
  });
  return threads;
}

}  // namespace llampi::comm
