// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other about themselves, as it travels.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "llampi/health/flight_record.hpp"
#include "llampi/health/side_work.hpp"

namespace llampi::health {

/// Text of a fixed length, cut where it is longer.
template <std::size_t N>
struct FixedText {
  char characters[N] = {};

  FixedText() = default;
  explicit FixedText(std::string_view text) { text.copy(characters, N - 1); }
  std::string_view view() const { return {characters, std::find(characters, characters + N - 1, '\0')}; }
};

/// An operation of the flight record.
struct HeardOperation {
  std::uint64_t sequence = 0, hash = 0;  ///< as in FlightEntry
  std::int64_t bytes = 0;
  std::int32_t micro_batch = -1;
  FixedText<44> operation;
  FixedText<80> name;
};

/// Where a rank stands: FlightPosition without pointers.
struct Heartbeat {
  std::int64_t step = 0;
  std::uint64_t issued = 0;
  std::uint64_t movement = 0;
  std::int32_t micro_batch = -1;
  Waiting waiting = Waiting::no;
  FixedText<44> doing;
  FixedText<80> doing_name;
  FixedText<44> phase;  ///< empty: in a step, or between two
  double seconds = 0;   ///< for how long it has been at it
  HeardOperation at;
  decltype(FlightPosition::marks) marks;
  FixedText<44> side_work;  ///< what its second thread does; empty: nothing
  std::uint64_t side_work_movement = 0;
  bool side_work_waits = false;  ///< for other ranks
};

/// What a rank answers when the job is about to end.
struct FlightReport {
  static constexpr std::size_t kOperations = 20;

  Heartbeat heartbeat;
  std::array<HeardOperation, kOperations> last;  ///< operations, the oldest first; sequence 0: none
  std::int32_t neighbour = -1;                   ///< the rank whose process it watches
  char neighbour_state = 0;                      ///< of that process; 0: unknown
  bool record_written = false;                   ///< the file of its flight record
};

/// @param io_bytes read and written by this process so far: in a phase they are movement, too
/// @param peers to whom it sends heartbeats, which are written and read as well
/// @param waits for other ranks, by its World: in a phase, in which the record does not know it
/// @param side_work what its second thread does
Heartbeat heartbeat_of(const FlightRecord& record, std::int64_t io_bytes, int peers = 0, bool waits = false,
                       const SideWork::Position& side_work = {});
/// @param heartbeat of the same rank, now
FlightReport report_of(const FlightRecord& record, const Heartbeat& heartbeat);

}  // namespace llampi::health
