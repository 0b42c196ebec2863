// SPDX-License-Identifier: Apache-2.0
// What llampi bench measures, and for how long.
#pragma once

#include <filesystem>

namespace llampi::measure {

struct Settings {
  int steps = 5;            ///< timed steps of each kind
  double seconds = 0.2;     ///< that a single operation is repeated for
  bool whole_steps = true;  ///< steps of the configured model
  bool strategies = true;   ///< also steps with the other strategies that the ranks can have
  /// Nothing but steps with each strategy, in interleaved rounds, so that a machine that is busy for a while slows all of them.
  bool strategies_only = false;
  bool single = true;  ///< also products, attention and memory-bound operations alone, at several shapes
  std::filesystem::path folder;  ///< in which a checkpoint is written, read and deleted; empty: none
};

}  // namespace llampi::measure
