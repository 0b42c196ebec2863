// SPDX-License-Identifier: Apache-2.0
#include "train/room.hpp"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/folders.hpp"
#include "llampi/train/run_checkpoints.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

constexpr double kLookSeconds = 10;
constexpr std::int64_t kForeseenSaves = 1'000'000;  // a run of more has no end in sight

std::int64_t sum_of_bytes(const std::vector<fs::path>& files) {
  return std::accumulate(
      files.begin(), files.end(), std::int64_t{0},
      [](std::int64_t sum, const fs::path& file) { return sum + checkpoint::file_bytes(file); });
}

/// What saves of dead jobs have left, and the next start deletes; 0 if the folder cannot be read just now.
std::int64_t unfinished_bytes(const fs::path& run_dir) try {
  return sum_of_bytes(checkpoint::unfinished_checkpoints(run_dir));
} catch (const Error&) {
  return 0;
}

std::string cannot_be_written(const fs::path& fallback, const std::string& reason) {
  return fmt::format("checkpoint.fallback_dir = {} cannot be written: {}; choose another folder",
                     fallback.string(), reason);
}

/// Why nothing can be written into the folder, or, if it is not there, why it cannot be made.
std::optional<std::string> what_forbids_writing(const fs::path& folder) {
  std::error_code error;
  const fs::path nearest = io::nearest_existing(folder);
  if (!fs::is_directory(nearest, error)) return std::generic_category().message(ENOTDIR);
  if (::access(nearest.c_str(), W_OK | X_OK) == 0) return std::nullopt;
  return std::generic_category().message(errno);
}

}  // namespace

RoomAtTheEnd room_at_the_end(const Saves& saves, const checkpoint::Retention& retention, std::int64_t bytes,
                             const std::vector<SavedFile>& existing) {
  if (saves.step >= saves.total_steps) return {};
  std::vector<std::int64_t> steps;
  for (const auto& file : existing) steps.push_back(file.step);
  if (saves.every > 0) {
    const std::int64_t first = saves.step / saves.every + 1, last = (saves.total_steps - 1) / saves.every;
    for (std::int64_t i = first; i <= std::min(last, first + kForeseenSaves); ++i)
      steps.push_back(i * saves.every);
  }
  RoomAtTheEnd end{1, bytes};
  if (steps.size() == existing.size()) return end;  // no save before the last one deletes any
  const auto stays = checkpoint::stay(steps, retention, [&](std::size_t i) {
    return i < existing.size() ? existing[i].has_optimizer : !retention.weights_only;
  });
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i < existing.size()) {
      if (!stays[i]) end.bytes -= existing[i].bytes;
    } else if (stays[i]) {
      ++end.new_files;
      end.bytes += bytes;
    }
  }
  return end;
}

Room::Room(const Config& config, std::int64_t bytes, fs::path fallback, FreeBytes free)
    : config_(config),
      bytes_(bytes),
      fallback_(std::move(fallback)),
      saved_{config.run.dir, -1},
      free_(std::move(free)) {}

/// Whether so many bytes fit, once `more` are freed.
bool Room::fits(std::int64_t more, std::int64_t bytes) const {
  const auto free = free_(folder());
  return !free || *free + more >= bytes;
}

/// What the next save deletes, if another checkpoint stays; nothing if the folder cannot be read just now.
std::vector<fs::path> Room::surplus_of_next() const try {
  checkpoint::Retention after_next = retention_of(config_);
  after_next.newest = std::max(1, after_next.newest - 1);
  return checkpoint::surplus_checkpoints(saved_, after_next);
} catch (const Error&) {
  return {};
}

std::string Room::shortage() const {
  const auto free = free_(folder());
  return fmt::format("it needs {}, and {} are free in {}", format_bytes(bytes_),
                     format_bytes(free.value_or(0)), folder().string());
}

void Room::make_fallback_dir() const {
  const fs::path fallback = config_.checkpoint.fallback_dir;
  if (fallback.empty()) return;
  std::error_code error;
  fs::create_directories(fallback, error);
  if (error) throw UserError(cannot_be_written(fallback, error.message()));
}

std::optional<RoomProblem> Room::problem_of_fallback() const {
  const fs::path fallback = config_.checkpoint.fallback_dir;
  if (fallback.empty()) return std::nullopt;
  if (const auto reason = what_forbids_writing(fallback))
    return RoomProblem{.text = cannot_be_written(fallback, *reason), .is_fatal = true};
  const auto free = free_(fallback);
  if (!free || *free >= bytes_) return std::nullopt;
  return RoomProblem{
      .text = fmt::format(
          "checkpoint.fallback_dir has no room for a checkpoint either: {} are free in {}, and one needs {}",
          format_bytes(*free), fallback.string(), format_bytes(bytes_))};
}

std::optional<RoomProblem> Room::problem_of_next() const {
  if (const auto limit = checkpoint::most_bytes_of_a_file(); limit && *limit < bytes_) {
    return RoomProblem{
        .text = fmt::format(
            "a checkpoint of this model needs {}, and no file of this process may be larger than {}; raise "
            "the limit with `ulimit -f unlimited`",
            format_bytes(bytes_), format_bytes(*limit)),
        .is_fatal = true};
  }
  if (fits(unfinished_bytes(config_.run.dir) + sum_of_bytes(surplus_of_next()), bytes_)) return std::nullopt;
  if (fits_elsewhere()) {
    return RoomProblem{.text =
                           fmt::format("there is no room for a checkpoint: {}; until there is, they go to {}",
                                       shortage(), fallback_.string())};
  }
  return RoomProblem{
      .text = fmt::format(
          "there is no room for a checkpoint of this model: {}. Older checkpoints are deleted only after a new one is "
          "completely written; make room there, or set run.dir to another place (checkpoint.state_dtype = bfloat16 takes less "
          "room, checkpoint.content = weights least)",
          shortage()),
      .is_fatal = true};
}

std::optional<std::string> Room::problem_at_the_end(const Saves& saves) const {
  const checkpoint::Retention retention = retention_of(config_);
  std::vector<SavedFile> existing;
  bool looks = retention.weights_only;  // for the newest that has the optimizer's state
  const auto files = checkpoint::list_checkpoints(config_.run.dir);
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    if (std::ranges::find(saved_.damaged, *file) != saved_.damaged.end()) continue;
    const bool is_continuable = looks && checkpoint::has_optimizer(*file);
    looks = looks && !is_continuable;
    existing.push_back({.step = *checkpoint::checkpoint_step(*file),
                        .bytes = checkpoint::file_bytes(*file),
                        .has_optimizer = is_continuable});
  }
  std::reverse(existing.begin(), existing.end());
  const auto end = room_at_the_end(saves, retention, bytes_, existing);
  const auto free = free_(folder());
  if (!free || *free >= end.bytes) return std::nullopt;
  const auto fewer = [&](std::int64_t newest, std::int64_t every) {
    const checkpoint::Retention kept{static_cast<int>(newest), every, retention.weights_only};
    return room_at_the_end(saves, kept, bytes_, existing).bytes <= *free;
  };
  std::int64_t keep = std::min<std::int64_t>(config_.checkpoint.keep, *free / bytes_);
  while (keep > 0 && !fewer(keep, retention.every)) --keep;
  std::string advice = "make room there, or set run.dir to another place";
  if (keep > 0) {
    advice = fmt::format("checkpoint.keep = {} would fit", keep);
  } else if (retention.every > 0 && fewer(1, 0)) {
    advice = "keep fewer (checkpoint.keep_every), or " + advice;
  }
  return fmt::format(
      "there is no room for all checkpoints of this run: with checkpoint.keep = {} and "
      "checkpoint.keep_every = {} there are {} new ones of {} when the last one is written, which need {}, "
      "and {} are free in {}; {} (checkpoint.state_dtype = bfloat16 takes less room, "
      "checkpoint.content = weights least)",
      config_.checkpoint.keep, config_.checkpoint.keep_every, end.new_files, format_bytes(bytes_),
      format_bytes(end.bytes), format_bytes(*free), folder().string(), advice);
}

std::optional<std::string> Room::new_problem(double now) {
  if (now - looked_ < kLookSeconds) return std::nullopt;
  looked_ = now;
  const bool was_short = std::exchange(is_short_, !fits() && !fits(sum_of_bytes(surplus_of_next()), bytes_));
  if (!is_short_ || was_short) return std::nullopt;
  return fmt::format("there is no room for the next checkpoint: {}; make room there", shortage());
}

bool Room::has_some() const { return fits() || fits_elsewhere(); }

bool Room::fits_elsewhere() const {
  if (fallback_.empty()) return false;
  const auto free = free_(fallback_);
  return !free || *free >= bytes_;
}

void Room::make_some(const Log& log) const {
  if (fits()) return;
  const auto surplus = surplus_of_next();
  if (!fits(sum_of_bytes(surplus), bytes_)) return;
  for (const auto& file : surplus) {
    if (fits()) return;
    log.warning("deletes {} before the next checkpoint is written, because there is no room for both",
                file.string());
    std::error_code error;
    fs::remove(file, error);
    if (error) log.warning("cannot delete {}: {}", file.string(), error.message());
  }
}

void require_room(const Room& room, const Log& log) {
  room.make_fallback_dir();
  for (const auto& problem : {room.problem_of_fallback(), room.problem_of_next()}) {
    if (!problem) continue;
    if (problem->is_fatal) throw UserError(problem->text);
    log.warning("{}", problem->text);
  }
}

}  // namespace llampi::train
