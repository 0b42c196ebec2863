// SPDX-License-Identifier: Apache-2.0
// What `llampi bench` measures, one kind of thing each.
#pragma once

#include <vector>

#include "llampi/comm/compute.hpp"
#include "llampi/measure/result.hpp"
#include "llampi/measure/settings.hpp"
#include "llampi/train/compiled_run.hpp"

namespace llampi::measure {

/// What all kinds need. All collective functions add the same rows on all ranks.
struct Bench {
  comm::World& world;
  comm::Compute& compute;
  const train::Config& config;
  const Settings& settings;
  train::RunShape shape;
  plan::AttentionKernels attention = plan::AttentionKernels::native;
  std::vector<Row>& rows;
};

/// Whole steps, as configured and with other strategies, which are those of measure_strategies(); the phases and operations of one; a
/// checkpoint of its state.
void measure_steps(const Bench& bench);
/// Steps with each strategy that the ranks can have, in interleaved rounds. Hybrid strategies on one node shard over half of its ranks, unless
/// configured.
void measure_strategies(const Bench& bench);
/// Products, attention and memory-bound operations alone.
void measure_operations(const Bench& bench);
/// Where there are several ranks.
void measure_collectives(const Bench& bench);

}  // namespace llampi::measure
