// SPDX-License-Identifier: Apache-2.0
// What Chrome traces of ranks (log.trace) add up to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace llampi::report {

/// What one rank's trace says of an average step, in seconds.
struct RankTimes {
  int rank = 0;
  std::int64_t steps = 0;
  double step = 0;                                ///< from its first event to its last
  double compute = 0;                             ///< that some operation computed
  double communication = 0;                       ///< that some collective was under way
  double exposed = 0;                             ///< of that, without computation at the same time
  double copies = 0;                              ///< between host and device
  std::map<std::string, double> operations = {};  ///< by operation, added up over streams
};

/// Of the files rank-*.json in a folder, by rank; of more than 64 the first. Files that are not traces, or larger than 256 MiB, are
/// left out.
std::vector<RankTimes> read_trace_times(const std::filesystem::path& folder);

/// Of one rank's file. Without steps if the text is not a trace.
RankTimes trace_times(const std::string& text);

}  // namespace llampi::report
