// SPDX-License-Identifier: Apache-2.0
// What was measured, for people, for files, and for comparison.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "llampi/plan/compute_time.hpp"
#include "llampi/train/compiled_run.hpp"

namespace llampi::measure {

/// What was measured of one thing.
struct Row {
  std::string
      group;  ///< "step", "strategy", "phase", "product", "attention", "memory", "collective", "checkpoint",
              ///< "operation"
  std::string name;    ///< unique within the group
  double seconds = 0;  ///< of the slowest rank, the shortest of some runs
  double rate = 0;
  std::string unit;          ///< of the rate: "tokens/s", "TFLOP/s" or "GB/s"; empty: it has none
  double bus_rate = 0;       ///< of a collective: bus bandwidth as nccl-tests define it, GB/s
  plan::Terms amounts = {};  ///< of an operation, for calibration; not in files
  int calls = 1;             ///< of an operation in a step: `seconds` is their mean; not in files
};

struct Result {
  std::string device;  ///< as Device::describe() puts it
  std::string gpu;     ///< a key of device::known_gpus(); "cpu" on CPUs, "cuda" for others
  int ranks = 1, nodes = 1, ranks_on_node = 1;
  std::vector<Row> rows;
  /// What was measured: the keys of the configuration with their values, and the model's numbers, such as "hidden_size". Empty for
  /// a file of an older llampi.
  std::map<std::string, std::string> configuration = {};
  train::RunShape shape = {};  ///< of the ranks: what every rank has. Files have its threads alone
};

/// A table for people.
std::string format(const Result& result);
/// {version, device, gpu, ranks, nodes, ranks_on_node, threads, configuration: {name: text}, rows: [{group, name, seconds, rate, unit, bus_rate}]}
std::string to_json(const Result& result);
/// @throws UserError for a text that to_json() has not written
Result from_json(const std::string& text, const std::string& file);
/// Both times of each row that both have, and by how many percent `now` is slower or faster; before them what else differs: device,
/// ranks, threads, configuration.
std::string format_comparison(const Result& now, const Result& then);

}  // namespace llampi::measure
