// SPDX-License-Identifier: Apache-2.0
// What a run computes with, and what its state is filled from: the same in a run and in a check before it.
#pragma once

#include <memory>
#include <string>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/train/config.hpp"
#include "train/decisions.hpp"
#include "train/inputs.hpp"
#include "train/resume.hpp"

namespace llampi::train {

struct RunEngine {
  std::unique_ptr<fsdp::Engine> engine;
  Decisions decisions;  ///< of what the configuration leaves to memory
};
/// Compares GPUs with CPUs, decides what is left to memory (the micro-batch, in `inputs` too), and allocates. The
/// engine's state is zero. Collective; `compute` and `inputs` must outlive the engine.
/// @param run_text of the checkpoint that the run goes on from, or of the run that begins
/// @throws UserError if the run does not fit, CommonError if a GPU computes something wrong
RunEngine build_engine(comm::World& world, comm::Compute& compute, Inputs& inputs, const Config& config,
                       const std::string& run_text, const Log& log);

/// The model of the weights that a run begins with. @throws UserError that names model.weights
model::LlamaConfig config_of_start(const Start& start);

/// Fills the engine with what a run starts from: a checkpoint, weights, or initial values. Returns what the checkpoint
/// says of the run; nothing of note without one. Of a run that trains adapters, the base comes from model.weights in any case,
/// and its checksums are noted in `inputs`. Collective.
/// @throws DamagedCheckpoint on all ranks, and UserError
checkpoint::TrainingState fill_from_start(comm::World& world, device::Device& device, fsdp::Engine& engine,
                                          const Start& start, Inputs& inputs, const Config& config,
                                          const Log& log);

}  // namespace llampi::train
