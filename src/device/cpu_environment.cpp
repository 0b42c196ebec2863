// SPDX-License-Identifier: Apache-2.0
#include "llampi/device/cpu_environment.hpp"

#include <cstdlib>

#include "device/cpu/gemm_environment.hpp"
#include "device/cpu/start_again.hpp"

namespace llampi::device {
namespace {

/// Looks of a thread for its next work before it sleeps: some ten microseconds, as long as it takes to wake
/// it.
constexpr const char* kSpins = "1000";

bool set_wait_policy() {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  // If they are there, they are the user's, or ours from before: never start again twice.
  if (is_set("OMP_WAIT_POLICY") || is_set("GOMP_SPINCOUNT") || is_set("KMP_BLOCKTIME")) return false;
  return setenv("OMP_WAIT_POLICY", "passive", 0) == 0 && setenv("GOMP_SPINCOUNT", kSpins, 0) == 0;
}

}  // namespace

void prepare_environment(char** argv) {
  const bool changed = set_wait_policy();
  prepare_gemm_environment(argv);  // which may have to start again as well
  if (changed) start_again(argv);  // if that fails, threads wait as they would
}

}  // namespace llampi::device
