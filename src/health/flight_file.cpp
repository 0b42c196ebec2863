// SPDX-License-Identifier: Apache-2.0
#include "health/flight_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "health/diagnosis.hpp"
#include "health/heartbeat.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/json_text.hpp"
#include "llampi/health/done_within.hpp"
#include "llampi/io/posix_file.hpp"

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

std::filesystem::path flight_folder(const std::filesystem::path& run_dir) { return run_dir / kFlightFolder; }

std::filesystem::path flight_file(const std::filesystem::path& run_dir, int rank) {
  return flight_folder(run_dir) / fmt::format("rank-{:05}.json", rank);
}

std::filesystem::path terminated_file(const std::filesystem::path& run_dir, int rank) {
  return flight_folder(run_dir) / fmt::format("terminated-{:05}.json", rank);
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
  return json_text(json, 1) + "\n";
}

FlightFile::FlightFile(const FlightRecord& record, std::filesystem::path run_dir, FlightFileHead head,
                       std::function<bool()> holds_run_dir)
    : record_(record),
      run_dir_(std::move(run_dir)),
      head_(std::move(head)),
      holds_run_dir_(std::move(holds_run_dir)) {}

bool FlightFile::write(const std::filesystem::path& file, const std::string& reason, double seconds) {
  if (holds_run_dir_ && !holds_run_dir_()) return false;
  head_.reason = reason;
  begun_.insert(file);
  const Done done = done_within(seconds, [file, text = flight_json(record_, head_)] {
    io::create_folder(file.parent_path());
    io::write_whole(file, text, false);  // a busy disk may take seconds
  });
  return done == Done::yes;
}

void FlightFile::remove() const {
  if (begun_.empty()) return;
  std::error_code ignored;
  for (const auto& file : begun_) std::filesystem::remove(file, ignored);
  std::filesystem::remove(flight_folder(run_dir_), ignored);
}

}  // namespace llampi::health
