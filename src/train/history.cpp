// SPDX-License-Identifier: Apache-2.0
#include "train/history.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "llampi/core/error.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::train {
namespace {

using HistoryLine = nlohmann::ordered_json;

HistoryLine line_of(const char* event, double time) {
  return {{"event", event}, {"time", std::round(time * 1e3) / 1e3}};
}

std::string text_of(const HistoryLine& line) {
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// There is a file then, and it ends with a whole line: the last one may have been cut off with its job.
const std::filesystem::path& mended(const std::filesystem::path& file) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(file, error);
  if (error || bytes == 0) {
    io::write_whole(file, "", false);
    return file;
  }
  const auto open = io::PosixFile::open_for_writing(file);
  char last = 0;
  const auto size = static_cast<std::int64_t>(bytes);
  io::PosixFile::open_for_reading(file).read_at(size - 1, std::as_writable_bytes(std::span(&last, 1)));
  if (last != '\n') open.write_at(size, std::as_bytes(std::span("\n", 1)));
  return file;
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
  return text_of(line);
}

std::string memory_json(const std::map<std::string, std::int64_t>& used_bytes, double time) {
  HistoryLine line = line_of("memory", time);
  line["used_bytes"] = used_bytes;
  return text_of(line);
}

std::string checkpoint_json(std::int64_t step, const std::string& file, double seconds, double time) {
  HistoryLine line = line_of("checkpoint", time);
  line["step"] = step;
  line["file"] = file;
  line["seconds"] = std::round(seconds * 1e3) / 1e3;
  return text_of(line);
}

std::string end_json(std::int64_t step, const std::string& outcome, double time) {
  HistoryLine line = line_of("end", time);
  line["step"] = step;
  line["outcome"] = outcome;
  return text_of(line);
}

void HistoryFile::append(const std::string& line) try {
  static_cast<void>(file_.append(line + "\n"));
} catch (const Error&) {  // stays in memory
}

HistoryFile::HistoryFile(const std::filesystem::path& file) : file_(mended(file)) {}

}  // namespace llampi::train
