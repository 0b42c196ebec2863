// SPDX-License-Identifier: Apache-2.0
// Disk space for the checkpoints of a run: whether there is enough.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llampi/checkpoint/newest.hpp"
#include "llampi/checkpoint/room.hpp"
#include "llampi/checkpoint/run_folder.hpp"
#include "llampi/core/log.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

/// The saves that a run at `step` has before it.
struct Saves {
  std::int64_t step = 0, total_steps = 0;
  std::int64_t every = 0;  ///< steps; 0: only at the end
};

/// A checkpoint that is there already.
struct SavedFile {
  std::int64_t step = 0, bytes = 0;
  bool has_optimizer = false;  ///< needed of the newest that has it, where new ones have none
};

/// While the last checkpoint of a run is being written, beside all that are kept until it is whole.
struct RoomAtTheEnd {
  std::int64_t new_files = 0;
  std::int64_t bytes = 0;  ///< that must be free now
};
/// @param bytes of a checkpoint
/// @param existing oldest first
RoomAtTheEnd room_at_the_end(const Saves& saves, const checkpoint::Retention& retention, std::int64_t bytes,
                             const std::vector<SavedFile>& existing);

/// What is wrong with the room for the next checkpoint.
struct RoomProblem {
  std::string text;
  bool is_fatal = false;  ///< a run does not start
};

/// The disk of run.dir, as rank 0 sees it. Where a file system does not tell what is free, there is enough.
class Room {
 public:
  using FreeBytes = std::function<std::optional<std::int64_t>(const std::filesystem::path& folder)>;

  /// @param bytes of a checkpoint
  /// @param fallback the run's fallback_folder()
  Room(const Config& config, std::int64_t bytes, std::filesystem::path fallback,
       FreeBytes free = checkpoint::free_bytes);

  /// As far as the run is now: see checkpoint::RunCheckpoints. Before that, no checkpoint is known that may be deleted.
  void note_checkpoints(std::int64_t step, const std::vector<checkpoint::Refused>& damaged) {
    saved_.step = step;
    saved_.damaged.clear();
    for (const auto& file : damaged) saved_.damaged.push_back(file.file);
  }
  /// Makes checkpoint.fallback_dir if one is named. @throws UserError if that fails
  void make_fallback_dir() const;
  /// checkpoint.fallback_dir, or the nearest folder above it while it is not there, cannot be written (fatal), or has no room for
  /// a checkpoint.
  std::optional<RoomProblem> problem_of_fallback() const;
  /// The next checkpoint fits only into the fallback folder, or nowhere (fatal).
  std::optional<RoomProblem> problem_of_next() const;
  /// What is kept of checkpoints will not fit in the end.
  std::optional<std::string> problem_at_the_end(const Saves& saves) const;
  /// To be asked every now and then: the room for the next checkpoint is gone. Says so again only after it was there meanwhile.
  /// Looks at the disk every ten seconds at most. @param now steady_seconds()
  std::optional<std::string> new_problem(double now);

  /// Whether a checkpoint fits into run.dir.
  bool fits() const { return fits(0, bytes_); }
  /// Likewise, or into the fallback folder.
  bool has_some() const;
  /// Before a save: where that is enough, deletes checkpoints that the next save would delete, oldest first,
  /// for as long as another one stays.
  void make_some(const Log& log) const;
  const std::filesystem::path& fallback() const { return fallback_; }
  std::filesystem::path folder() const { return std::filesystem::path(config_.run.dir) / "checkpoints"; }
  /// "it needs 1.2 GiB, and 3 MiB are free in runs/a/checkpoints"
  std::string shortage() const;

 private:
  bool fits(std::int64_t more, std::int64_t bytes) const;
  bool fits_elsewhere() const;
  std::vector<std::filesystem::path> surplus_of_next() const;

  const Config& config_;
  std::int64_t bytes_;
  std::filesystem::path fallback_;
  checkpoint::RunCheckpoints saved_;
  FreeBytes free_;
  double looked_ = -1e9;
  bool is_short_ = false;
};

/// At the start of a run: makes checkpoint.fallback_dir, and warns of what is wrong with the room for the next checkpoint.
/// @throws UserError if that is fatal
void require_room(const Room& room, const Log& log);

}  // namespace llampi::train
