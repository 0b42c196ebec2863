// SPDX-License-Identifier: Apache-2.0
// Training steps on random tokens: how many layers fit, and how long steps take.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/machine.hpp"
#include "gpu/operation_timer.hpp"
#include "llampi/model/llama.hpp"

namespace llampi::bench {

/// options.layers, or as many as fit into the memory of every rank's device, whatever the gradients, 18 at
/// most. Collective.
/// @throws UserError if none fits
std::int64_t layers_that_fit(const Machine& machine, comm::World& world, const Options& options);

std::unique_ptr<model::Model> make_model(const Options& options, std::int64_t layers);

/// With the tokens and the number of micro-batches that a run would choose, if that is asked for. Collective.
Options with_micro_batches(const model::Model& model, const Machine& machine, comm::World& world,
                           Options options);

struct StepTimes {
  std::vector<double> seconds;  ///< of the timed steps, sorted
  std::vector<double> losses;   ///< mean over this rank's tokens, of all steps, the first ones included
  double grad_norm = 0;         ///< of the last step
  double flops_per_token = 0;   ///< fsdp::flops_per_token()
  std::int64_t arena_bytes = 0;
  std::int64_t logits_bytes = 0;    ///< of a chunk of rows, at most
  double tuning_seconds = 0;        ///< that the choice of products took
  std::int64_t attention_room = 0;  ///< bytes for deterministic attention
  std::string checkpointing;        ///< what auto has come to, as the next one
  bool offload_residuals = false;
};
/// Whole steps, each from an idle device to an idle device. Collective.
StepTimes time_steps(const model::Model& model, const Machine& machine, comm::World& world,
                     const Options& options);

/// Of a step that is issued action by action while its operations are timed, which does not hold it up.
struct Profile {
  double seconds = 0;                               ///< of the step
  double first_loss = 0;                            ///< to be that of time_steps()
  std::map<std::string, OperationTime> operations;  ///< of a step
};
Profile profile_step(const model::Model& model, const Machine& machine, comm::World& world,
                     const Options& options);

}  // namespace llampi::bench
