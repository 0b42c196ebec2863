// SPDX-License-Identifier: Apache-2.0
#include "train/history.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "llampi/core/error.hpp"
#include "llampi/core/json_text.hpp"
#include "llampi/core/split.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::train {
namespace {

using HistoryLine = nlohmann::ordered_json;

HistoryLine line_of(const char* event, double time) {
  return {{"event", event}, {"time", std::round(time * 1e3) / 1e3}};
}

/// There is a file then.
const std::filesystem::path& made(const std::filesystem::path& file) {
  std::error_code ignored;
  if (std::filesystem::status(file, ignored).type() == std::filesystem::file_type::not_found)
    io::write_whole(file, "", false);
  return file;
}

/// Its last line may have been cut off with its job, or by a full disk.
bool ends_within_a_line(const std::filesystem::path& file) {
  const auto open = io::PosixFile::open_for_reading(file);
  char last = '\n';
  if (const auto size = open.size(); size > 0)
    open.read_at(size - 1, std::as_writable_bytes(std::span(&last, 1)));
  return last != '\n';
}

}  // namespace

std::string start_json(const JobStart& start, double time) {
  HistoryLine line = line_of("start", time);
  line["step"] = start.step;
  line["total_steps"] = start.total_steps;
  line["tokens_per_step"] = start.tokens_per_step;
  line["parameters"] = start.parameters;
  line["ranks"] = start.ranks;
  line["nodes"] = start.nodes;
  line["device"] = start.device;
  line["planned_bytes"] = start.planned_bytes;
  line["peak_bytes"] = start.peak_bytes;
  return json_text(line);
}

std::string memory_json(const std::map<std::string, std::int64_t>& used_bytes, double time) {
  HistoryLine line = line_of("memory", time);
  line["used_bytes"] = used_bytes;
  return json_text(line);
}

std::string checkpoint_json(std::int64_t step, const std::string& file, CheckpointContent content,
                            double seconds, double time) {
  HistoryLine line = line_of("checkpoint", time);
  line["step"] = step;
  line["file"] = file;
  line["content"] = word_of(content);
  line["seconds"] = std::round(seconds * 1e3) / 1e3;
  return json_text(line);
}

std::string end_json(const JobEnd& end, double time) {
  HistoryLine line = line_of("end", time);
  line["step"] = end.step;
  line["outcome"] = end.outcome;
  if (!end.reason.empty()) line["reason"] = end.reason;
  return json_text(line);
}

std::vector<SavedCheckpoint> saved_checkpoints(const std::filesystem::path& run_dir) {
  const std::filesystem::path file = run_dir / "history.jsonl";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return {};
  std::vector<SavedCheckpoint> saved;
  for (const auto& line : lines_of(io::read_whole(file))) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;  // torn
    try {
      const auto event = json.value("event", "");
      if (event == "start" && json.value("step", std::int64_t{-1}) == 0) saved.clear();
      if (event == "checkpoint") {
        const std::string place = json.at("file");
        saved.push_back(
            {.step = json.at("step"),
             .file = place.starts_with("checkpoints/") ? run_dir / place : std::filesystem::path(place),
             .time = json.at("time")});
      }
    } catch (const nlohmann::json::exception&) {  // no line of this program
    }
  }
  return saved;
}

HistoryFile::HistoryFile(const std::filesystem::path& file) : file_(made(file)) {
  if (ends_within_a_line(file)) append("");
}

void HistoryFile::append(const std::string& line) { static_cast<void>(file_.append(line + "\n")); }

}  // namespace llampi::train
