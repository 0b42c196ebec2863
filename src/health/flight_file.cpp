// SPDX-License-Identifier: Apache-2.0
#include "health/flight_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "health/diagnosis.hpp"
#include "health/heartbeat.hpp"
#include "llampi/core/clock.hpp"

namespace llampi::health {
namespace {

using Json = nlohmann::ordered_json;

/// Milliseconds are enough for people, and microseconds for sorting.
double ago(double now, double then) { return std::round((now - then) * 1e6) / 1e6; }

Json json_of(const FlightOperation& what, const std::vector<std::string>& names) {
  Json json{{"operation", what.operation}};
  if (what.name >= 0 && what.name < std::ssize(names)) json["of"] = names[what.name];
  if (what.bytes > 0) json["bytes"] = what.bytes;
  if (what.micro_batch >= 0) json["micro_batch"] = what.micro_batch;
  return json;
}

}  // namespace

std::filesystem::path flight_folder(const std::filesystem::path& run_dir) { return run_dir / "flight"; }

std::filesystem::path flight_file(const std::filesystem::path& run_dir, int rank) {
  return flight_folder(run_dir) / fmt::format("rank-{:05}.json", rank);
}

std::string flight_json(const FlightRecord& record, const FlightFileHead& head) {
  const double now = steady_seconds();
  const FlightPosition position = record.position();
  const auto names = record.names();
  Json json{{"rank", head.rank},
            {"ranks", head.ranks},
            {"host", head.host},
            {"pid", ::getpid()},
            {"written", utc_now()},
            {"reason", head.reason},
            {"now",
             {{"step", position.step},
              {"issued", position.issued},
              {"where", describe(heartbeat_of(record, 0))},
              {"seconds", ago(now, position.since)}}}};
  Json operations = Json::array();
  for (const auto& entry : record.entries()) {
    Json line{{"sequence", entry.sequence}, {"step", entry.step}};
    line.update(json_of(entry.what, names));
    line["state"] = entry.completed > 0 ? "completed" : "issued";
    line["issued_seconds_ago"] = ago(now, entry.issued);
    if (entry.completed > 0) line["completed_seconds_ago"] = ago(now, entry.completed);
    operations.push_back(line);
  }
  json["operations"] = std::move(operations);
  Json captured = Json::array();
  for (const auto& what : record.captured()) captured.push_back(json_of(what, names));
  json["captured_step"] = std::move(captured);
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace llampi::health
