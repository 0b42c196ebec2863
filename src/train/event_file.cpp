// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/process.hpp"
#include "llampi/io/folders.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;
constexpr std::string_view kBeginning = "events.out.tfevents.", kOwnEnding = ".llampi";

constexpr std::array<std::uint32_t, 256> castagnoli_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82f63b78U : 0U);
    table[byte] = rest;
  }
  return table;
}

/// Little-endian, as are the machines we run on.
template <std::integral Number>
std::string bytes_of(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

std::string masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return bytes_of(std::rotr(crc, 15) + 0xa282ead8U);
}

// ---- protobuf: a field is its key (number and wire type), then its value ----

enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// Seven bits a byte, the lowest first; the eighth bit says that more follow.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes += static_cast<char>(value);
}

std::string key(std::uint64_t field, WireType type) { return varint(field << 3 | type); }

std::string integer_field(std::uint64_t field, std::int64_t value) {
  return key(field, kVarint) + varint(static_cast<std::uint64_t>(value));
}
std::string double_field(std::uint64_t field, double value) {
  return key(field, kFixed64) + bytes_of(std::bit_cast<std::uint64_t>(value));
}
std::string float_field(std::uint64_t field, float value) {
  return key(field, kFixed32) + bytes_of(std::bit_cast<std::uint32_t>(value));
}
std::string bytes_field(std::uint64_t field, std::string_view value) {
  return key(field, kBytes) + varint(value.size()) + std::string(value);
}

// ---- lines of metrics.jsonl ----

struct Curve {
  const char* key;   ///< of metrics.jsonl
  const char* tag;   ///< of TensorBoard: the part before the slash is a section of the page
  bool may_be_lost;  ///< null means that it was not finite, and not that it is not known
};
constexpr Curve kCurves[] = {
    {"loss", "train/loss", true},
    {"eval_loss", "eval/loss", true},
    {"lr", "train/learning_rate", false},
    {"grad_norm", "train/grad_norm", true},
    {"tokens_seen", "train/tokens_seen", false},
    {"loss_scale", "train/loss_scale", false},
    {"tokens_per_second", "speed/tokens_per_second", false},
    {"step_seconds", "speed/step_seconds", false},
    {"data_seconds", "speed/data_seconds", false},
    {"checkpoint_stall_seconds", "speed/checkpoint_stall_seconds", false},
    {"mfu", "speed/mfu", false},
    {"memory_bytes", "memory/bytes", false},
    {"gpu_process_bytes", "memory/gpu_process_bytes", false},
    {"fp8_saturated", "fp8/saturated", false},
    {"fp8_zero_scale", "fp8/zero_scale", false},
};

/// Null for what is no line.
nlohmann::json parsed_line(std::string_view line) {
  auto json = nlohmann::json::parse(line, nullptr, false);
  const bool is_line = json.is_object() && json.contains("step") && json["step"].is_number_integer();
  return is_line ? json : nlohmann::json();
}

std::vector<Scalar> scalars_of(const nlohmann::json& line) {
  std::vector<Scalar> scalars;
  for (const auto& curve : kCurves) {
    const auto value = line.find(curve.key);
    if (value == line.end()) continue;
    if (value->is_number()) {
      scalars.push_back({curve.tag, value->get<double>()});
    } else if (value->is_null() && curve.may_be_lost) {
      scalars.push_back({curve.tag, std::numeric_limits<double>::quiet_NaN()});
    }
  }
  if (const auto files = line.find("eval_losses"); files != line.end() && files->is_object()) {
    for (const auto& [name, loss] : files->items())
      scalars.push_back({"eval/loss/" + name,
                         loss.is_number() ? loss.get<double>() : std::numeric_limits<double>::quiet_NaN()});
  }
  return scalars;
}

/// The record of a line; empty for what is none. @param time of lines that do not have theirs
std::string record_of(std::string_view line, double time) {
  const auto json = parsed_line(line);
  if (json.is_null()) return "";
  if (const auto own = json.find("time"); own != json.end() && own->is_number()) time = own->get<double>();
  return tf_record(scalars_event(time, json["step"].get<std::int64_t>(), scalars_of(json)));
}

/// Files of earlier programs and of this one.
std::vector<fs::path> own_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& file : io::entries_of(folder, ignored)) {
    const std::string name = file.filename().string();
    if (name.starts_with(kBeginning) && name.ends_with(kOwnEnding)) files.push_back(file);
  }
  return files;
}

/// TensorBoard reads the files of a folder in the order of their names: the new one is the last.
fs::path new_name(const fs::path& folder, const std::vector<fs::path>& older) {
  auto seconds = static_cast<std::int64_t>(unix_seconds());
  for (const auto& file : older) {
    const std::string name = file.filename().string();
    seconds = std::max<std::int64_t>(seconds, 1 + std::atoll(name.c_str() + kBeginning.size()));
  }
  return folder / fmt::format("{}{:010}.{}{}", kBeginning, seconds, host_name(), kOwnEnding);
}

/// Empties the file instead of removing it: TensorBoard goes on to the next file only if the current one exists. Removes it if an
/// earlier job emptied it.
void forget(const fs::path& old) {
  std::error_code ignored;
  if (fs::is_empty(old, ignored)) {
    fs::remove(old, ignored);
  } else {
    fs::resize_file(old, 0, ignored);
  }
}

/// Writes what there is so far, piece by piece: the records of a long run are not all kept in memory. Returns the file's name.
/// While it is written it has a name that TensorBoard ignores.
fs::path write_so_far(const fs::path& folder, const fs::path& metrics) {
  const std::string lines = io::read_whole(metrics);
  io::create_folder(folder);
  io::clear_leftovers_in(folder, {});
  const auto older = own_files(folder);
  const fs::path file = new_name(folder, older);
  const double now = unix_seconds();
  std::string records = tf_record(first_event(now)) + tf_record(restart_event(now));
  const io::TemporaryFile temporary(io::temporary_beside(folder / "events"));
  const auto out = io::PosixFile::create(temporary.path());
  std::int64_t written = 0;
  const auto write = [&] {
    out.write_at(written, std::as_bytes(std::span(records)));
    written += std::ssize(records);
    records.clear();
  };
  std::string_view rest = lines;
  for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    records += record_of(rest.substr(0, end), now);
    rest.remove_prefix(end + 1);
    if (records.size() >= kPieceBytes) write();
  }
  write();
  io::rename_into_place(temporary.path(), file);
  for (const auto& old : older) forget(old);
  return file;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = castagnoli_table();
  std::uint32_t crc = ~0U;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

std::string tf_record(std::string_view message) {
  const std::string length = bytes_of(static_cast<std::uint64_t>(message.size()));
  return length + masked_crc(length) + std::string(message) + masked_crc(message);
}

std::vector<Scalar> scalars_of(std::string_view metrics_line) {
  return scalars_of(parsed_line(metrics_line));
}

// Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log. Summary: 1 value. Value: 1 tag, 2 simple_value.
std::string first_event(double time) { return double_field(1, time) + bytes_field(3, "brain.Event:2"); }

/// SessionLog: 1 status, START = 1. Readers drop what they know of this event's step (0) and later ones.
std::string restart_event(double time) { return double_field(1, time) + bytes_field(7, integer_field(1, 1)); }

std::string scalars_event(double time, std::int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const auto& scalar : scalars) {
    summary += bytes_field(1, bytes_field(1, scalar.tag) + float_field(2, static_cast<float>(scalar.value)));
  }
  return double_field(1, time) + integer_field(2, step) + bytes_field(5, summary);
}

EventFile::EventFile(const fs::path& folder, const fs::path& metrics)
    : file_(write_so_far(folder, metrics)) {}

void EventFile::append(std::string_view metrics_line) {
  static_cast<void>(file_.append(record_of(metrics_line, unix_seconds())));
}

}  // namespace llampi::train
