// SPDX-License-Identifier: Apache-2.0
#include "health/heartbeat.hpp"
#include "llampi/core/clock.hpp"

namespace llampi::health {
namespace {

/// So much I/O of a process counts as movement. The watchdog's own I/O (/proc, and heartbeats to each peer once a second) stays below
/// it in any time that a rank may spend in a phase without movement.
std::int64_t bytes_of_movement(int peers) {
  return (std::int64_t{64} << 20) + peers * (std::int64_t{4} << 20);
}

std::string_view name_at(const std::vector<std::string>& names, int index) {
  return index >= 0 && index < std::ssize(names) ? std::string_view(names[index]) : std::string_view();
}

HeardOperation operation_of(const FlightEntry& entry, const std::vector<std::string>& names) {
  HeardOperation heard;
  heard.sequence = entry.sequence;
  heard.hash = entry.hash;
  heard.bytes = entry.what.bytes;
  heard.micro_batch = entry.what.micro_batch;
  heard.operation = FixedText<44>(entry.what.operation);
  heard.name = FixedText<80>(name_at(names, entry.what.name));
  return heard;
}

}  // namespace

Heartbeat heartbeat_of(const FlightRecord& record, std::int64_t io_bytes, int peers, bool waits,
                       const SideWork::Position& side_work) {
  const FlightPosition position = record.position();
  const auto names = record.names();
  Heartbeat heartbeat;
  heartbeat.step = position.step;
  heartbeat.issued = position.issued;
  heartbeat.movement = position.movement;
  heartbeat.micro_batch = position.micro_batch;
  heartbeat.waiting = position.waiting;
  heartbeat.doing = FixedText<44>(position.doing);
  heartbeat.doing_name = FixedText<80>(name_at(names, position.doing_name));
  heartbeat.seconds = steady_seconds() - position.since;
  heartbeat.at = operation_of(position.at, names);
  heartbeat.marks = position.marks;
  heartbeat.side_work_movement = side_work.movement;
  if (side_work.what != nullptr) {
    heartbeat.side_work = FixedText<44>(side_work.what);
    heartbeat.side_work_waits = side_work.waits;
  }
  if (position.phase != nullptr) {
    heartbeat.phase = FixedText<44>(position.phase);
    if (waits && position.waiting == Waiting::no) heartbeat.waiting = Waiting::ranks;
    heartbeat.movement += static_cast<std::uint64_t>(io_bytes / bytes_of_movement(peers));
  }
  return heartbeat;
}

FlightReport report_of(const FlightRecord& record, const Heartbeat& heartbeat) {
  FlightReport report;
  report.heartbeat = heartbeat;
  const auto entries = record.entries();
  const auto names = record.names();
  const std::size_t count = std::min(entries.size(), FlightReport::kOperations);
  for (std::size_t i = 0; i < count; ++i)
    report.last[i] = operation_of(entries[entries.size() - count + i], names);
  return report;
}

}  // namespace llampi::health
