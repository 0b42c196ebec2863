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
  std::int64_t first_step = 0, last_step = 0;
  double step = 0;                                ///< from its first event to its last
  double compute = 0;                             ///< that some operation computed
  double communication = 0;                       ///< that some collective was under way
  double exposed = 0;                             ///< of that, without computation at the same time
  double copies = 0;                              ///< between host and device
  std::map<std::string, double> operations = {};  ///< by operation, added up over streams
};

/// The files rank-*.json in a folder, by rank; of more than 64 the first, and none larger than 256 MiB.
struct TraceFiles {
  struct File {
    std::filesystem::path path;
    std::uintmax_t bytes = 0;
    std::filesystem::file_time_type changed = {};
    bool operator==(const File&) const = default;
  };
  std::vector<File> files = {};
  std::int64_t beyond = 0, too_large = 0;  ///< left out: after the first 64, larger than that
  bool operator==(const TraceFiles&) const = default;
};
TraceFiles find_traces(const std::filesystem::path& folder);

/// Of all ranks, by rank.
struct TraceTimes {
  std::vector<RankTimes> ranks;
  std::string
      left_out;  ///< "12 traces after the first 64, 1 larger than 256 MiB, 2 that cannot be read"; empty: none
};
TraceTimes read_trace_times(const TraceFiles& traces);

/// Of one rank's file. Without steps if the text is not a trace.
RankTimes trace_times(const std::string& text);

}  // namespace llampi::report
