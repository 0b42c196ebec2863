// SPDX-License-Identifier: Apache-2.0
// Chrome trace of what the engine did: https://ui.perfetto.dev opens it. A row per stream.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// FOLDER/rank-00003.json
std::filesystem::path trace_file(const std::filesystem::path& folder, int rank);
/// Removes traces of ranks that a job of `ranks` ranks does not have: an earlier job with more ranks wrote them, and they would be
/// taken for a part of this job's.
void remove_traces_of_more_ranks(const std::filesystem::path& folder, int ranks);

/// Records the actions of one list and writes them as a JSON file in the Trace Event Format (complete events,
/// microseconds). An event's category is its operation; its arguments, where they have a meaning, are
/// step, micro_batch, unit, layer (numbers, as `unit_name`, `layer_name` name them), pass (of
/// unsharded parameters: forward or backward), payload (of a copy), bytes (Action::bytes), ranks (those of a
/// collective), and issued: when the engine gave it to its stream, on which it begins behind the event before
/// it. Begin and end are a GPU's own, where there is one, which is not held up to know them.
class Trace {
 public:
  /// `engine` must outlive it.
  Trace(const fsdp::Engine& engine, int rank) : engine_(engine), rank_(rank) {}

  /// To be given to Engine::observe() for one step; the Trace must outlive the use.
  fsdp::Observer observer(std::int64_t step);
  /// Writes what was recorded and forgets it. @throws UserError if the file cannot be written
  void write(const std::filesystem::path& file);

 private:
  struct Record {
    std::int64_t step;
    const fsdp::Action* action;             ///< of the engine's programs
    double issued = 0, begin = 0, end = 0;  ///< seconds
  };
  const fsdp::Engine& engine_;
  int rank_;
  std::vector<Record> records_;
  std::vector<std::size_t> open_;  ///< per action of the list: its latest record
};

/// The traces of log.trace: one file per rank, written once the last traced step is done.
class StepTraces {
 public:
  /// All of it outlives the traces.
  StepTraces(comm::World& world, const Config& config, const Log& log)
      : world_(world), config_(config), log_(log) {}

  /// For the engine and this step; empty where it is not traced. Collective.
  fsdp::Observer observer(const fsdp::Engine& engine, std::int64_t step);
  /// What was recorded, if anything was. A file that cannot be written is a warning: the run goes on. Collective.
  void write();

 private:
  comm::World& world_;
  const Config& config_;
  const Log& log_;
  std::unique_ptr<Trace> trace_;  ///< while steps are traced
};

}  // namespace llampi::train
