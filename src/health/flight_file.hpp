// SPDX-License-Identifier: Apache-2.0
// A rank's flight record as a file: RUN_DIR/flight/rank-00003.json.
#pragma once

#include <filesystem>
#include <string>

#include "llampi/health/flight_record.hpp"

namespace llampi::health {

std::filesystem::path flight_folder(const std::filesystem::path& run_dir);
std::filesystem::path flight_file(const std::filesystem::path& run_dir, int rank);

struct FlightFileHead {
  int rank = 0;
  int ranks = 1;
  std::string host;
  std::string reason;  ///< for which it is written
};

/// One JSON object: rank, ranks, host, pid, written (UTC), reason; `now`: where the rank stands;
/// `operations`: the last ones, the oldest first, with times in seconds before `written`; `captured_step`:
/// those of a step that is replayed whole.
std::string flight_json(const FlightRecord& record, const FlightFileHead& head);

}  // namespace llampi::health
