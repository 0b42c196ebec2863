// SPDX-License-Identifier: Apache-2.0
#include "health/delays.hpp"

#include <algorithm>

namespace llampi::health {
namespace {

constexpr double kTurnSeconds = 0.05;
constexpr int kMostTurns = 100;  // nobody waits longer than for so many

}  // namespace

double heartbeat_delay(int local_rank, int local_ranks, double interval) {
  return std::min(static_cast<double>(local_ranks) / kSpeakersPerSecond, interval) * local_rank / local_ranks;
}

double report_delay(int rank, int ranks, double longest) {
  return std::min(static_cast<double>(ranks) / kWritersPerSecond, longest) * rank / ranks;
}

double turn_of(int rank) { return kTurnSeconds * std::min(rank, kMostTurns); }

}  // namespace llampi::health
