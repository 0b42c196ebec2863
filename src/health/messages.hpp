// SPDX-License-Identifier: Apache-2.0
// What ranks send each other along the tree of ranks (watch_tree.hpp): a character for the kind, then the content as
// comm::packed() writes it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "health/overview.hpp"
#include "health/own_progress.hpp"

namespace llampi::health {

enum class MessageKind : char {
  up = 'u',      ///< a Beat of a rank below
  down = 'd',    ///< and of one above
  ask = 'a',     ///< a Question
  report = 'r',  ///< Accounts
  left = 'x',    ///< ranks that end their training after an error, the sender among them: its last message
  last = 'l',    ///< likewise, without an error and without content
  port = 'p',    ///< the ListeningPort of a rank above
};

/// A heartbeat with what else the rank has heard.
struct Beat {
  std::string host;
  Standing standing;
  std::array<double, 2> monitor_seconds{};  ///< down only: since the monitors were heard of
  Overview overview;                        ///< up only

  auto members() { return std::tie(host, standing, monitor_seconds, overview); }
};

/// Of a monitor, to all.
struct Question {
  std::int32_t monitor = 0, number = 0;
  bool urgent = false;
  std::string reason;
  std::vector<std::int32_t> exited;  ///< ranks whose processes have ended

  auto members() { return std::tie(monitor, number, urgent, reason, exited); }
};

/// What a monitor learns of one rank that it asks about, from the rank itself or, without a report, from the one above it.
struct Account {
  std::int32_t rank = 0;
  std::string host;
  Standing standing;
  double silent_seconds = 0;         ///< since it was like this
  std::vector<FlightReport> report;  ///< one, or none

  auto members() { return std::tie(rank, host, standing, silent_seconds, report); }
};

}  // namespace llampi::health
