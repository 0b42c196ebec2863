// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/run_time.hpp"

namespace llampi::plan {

TimedActions time_actions(const train::CompiledRun& run, const Figures& figures) {
  return time_actions(run, run.options, figures);
}

TimedActions time_actions(const train::CompiledRun& run, const fsdp::EngineOptions& options,
                          const Figures& figures) {
  TimedActions timed{.speed = figures.speed, .work = {}, .phases = {}};
  if (figures.by_operation()) {
    timed.work = work_of_step(*run.model, options, run.mesh, run.compiled, *run.sizes, figures.speed.backend,
                              figures.attention);
    timed.speed.costs = costs_of(*figures.machine, figures.share, timed.work);
  }
  timed.phases = action_phases(*run.model, options, run.mesh, run.compiled, timed.speed, timed.work);
  timed.time = time_of_step(run.compiled.step.actions, timed.phases, timed.speed.shares_communicators);
  return timed;
}

}  // namespace llampi::plan
