// SPDX-License-Identifier: Apache-2.0
#include "llampi/train/open_compute.hpp"

#include <algorithm>
#include <chrono>

#include "llampi/comm/threads.hpp"

namespace llampi::train {
namespace {

/// @param watchdog_seconds 0: the watchdog is off, as for a debugger
std::chrono::milliseconds patience_of(double watchdog_seconds) {
  if (watchdog_seconds == 0) return std::chrono::years(1);
  const std::chrono::duration<double> seconds(std::min(watchdog_seconds, 1e7));
  return std::max(comm::kNcclPatience, std::chrono::duration_cast<std::chrono::milliseconds>(seconds));
}

}  // namespace

comm::Compute open_compute_of_run(comm::World& world, const Config& config,
                                  const ConfigError::Naming& name_of, const Log& log) {
  const int threads = comm::threads_per_rank(world, config.run.threads);
  return comm::open_compute(world,
                            {.device = config.run.device,
                             .threads = threads,
                             .share_gpu = config.run.share_gpu,
                             .deterministic = config.run.deterministic,
                             .tf32 = config.run.tf32,
                             .attention = config.run.attention,
                             .product_sms = config.fsdp.product_sms,
                             .reduction = config.fsdp.reduction,
                             .nccl = {.max_ctas = config.fsdp.nccl_ctas,
                                      .window = config.fsdp.nccl_window,
                                      .copy_engines = config.fsdp.nccl_copy_engines,
                                      .split_share = config.fsdp.nccl_split_share},
                             .patience = patience_of(config.run.watchdog_seconds),
                             .bind = config.run.bind,
                             .name_of = name_of},
                            log);
}

}  // namespace llampi::train
