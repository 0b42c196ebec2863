#include "train/heartbeat.hpp"

namespace llampi {
namespace {

/// What the watchdog itself reads (of /proc) is less in any time that it would wait.
constexpr std::int64_t kBytesOfMovement = std::int64_t{64} << 20;

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

Heartbeat heartbeat_of(const FlightRecord& record, std::int64_t io_bytes) {
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
  heartbeat.seconds = flight_clock() - position.since;
  heartbeat.at = operation_of(position.at, names);
  heartbeat.marks = position.marks;
  if (position.phase != nullptr) {
    heartbeat.phase = FixedText<44>(position.phase);
    heartbeat.movement += static_cast<std::uint64_t>(io_bytes / kBytesOfMovement);
  }
  return heartbeat;
}

FlightReport report_of(const FlightRecord& record, std::int64_t io_bytes) {
  FlightReport report;
  report.heartbeat = heartbeat_of(record, io_bytes);
  const auto entries = record.entries();
  const auto names = record.names();
  const std::size_t count = std::min(entries.size(), FlightReport::kOperations);
  for (std::size_t i = 0; i < count; ++i)
    report.last[i] = operation_of(entries[entries.size() - count + i], names);
  return report;
}

}  // namespace llampi
