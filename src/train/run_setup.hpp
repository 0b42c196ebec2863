// SPDX-License-Identifier: Apache-2.0
// What a run has before its first step, stage by stage: the same in a run and in a check before it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/newest.hpp"
#include "llampi/comm/compute.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/data/loader.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/health/flight_record.hpp"
#include "llampi/train/config.hpp"
#include "train/decisions.hpp"
#include "train/inputs.hpp"
#include "train/resume.hpp"

namespace llampi::train {

/// Its functions are the stages, in their order; all of them are collective. Members refer to each other, so it stays where it is.
struct RunSetup {
  // Given; all of it outlives the run.
  comm::World& world;
  const Config& config;
  const ConfigTexts& texts;
  const Log& log;

  health::FlightRecord record = {};

  Inputs inputs = {};
  checkpoint::TrainingState state = {};  ///< as of the last step that was done

  Start start = {};
  std::vector<checkpoint::Refused> refused = {};  ///< checkpoints that are not whole; complete on rank 0

  comm::Compute compute = {};
  std::unique_ptr<fsdp::Engine> engine = {};
  Decisions decisions = {};  ///< of what the configuration leaves to memory

  /// @param model_text of open_inputs()
  void open_inputs(const std::string& model_text);
  /// Where the run starts: train::choose_start(). Repeated after fill_engine() has found the checkpoint damaged.
  void choose_start();
  /// @throws UserError if the weights to begin with are of another model
  void check_weights() const;
  void open_compute();
  /// Compares GPUs with CPUs, decides what is left to memory (the micro-batch, in `inputs` too), and allocates. The
  /// engine's state is zero.
  /// @throws UserError if the run does not fit, CommonError if a GPU computes something wrong
  void build_engine();
  /// With what the run starts from: a checkpoint, whose state it takes over, weights, or initial values. Of a run that trains
  /// adapters, the base comes from model.weights in any case, and its checksums are noted in `inputs`. Then notes the decisions
  /// in the run's text.
  /// @returns the step of the checkpoint; -1 where the run begins
  /// @throws DamagedCheckpoint on all ranks, and UserError
  std::int64_t fill_engine();

  /// Frees the devices, with what is on them: nothing is computed any more.
  void close();

  /// Of this rank's micro-batches, once the engine is built.
  data::Loader open_loader() const;
  /// What checkpoints of the run say besides their tensors.
  checkpoint::CheckpointTexts checkpoint_texts() const;

 private:
  void fill_adapters();
  checkpoint::TrainingState fill_from_start();
};

}  // namespace llampi::train
