// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/newest.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "llampi/core/error.hpp"

namespace llampi::checkpoint {

namespace fs = std::filesystem;

const Refused* find(const std::vector<Refused>& refused, const fs::path& file) {
  const auto match =
      std::find_if(refused.begin(), refused.end(), [&](const Refused& other) { return other.file == file; });
  return match == refused.end() ? nullptr : &*match;
}

std::optional<FoundCheckpoint> newest_readable(const std::vector<fs::path>& files,
                                               std::vector<Refused>& refused, const Log& log) {
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    if (find(refused, *file) != nullptr) continue;
    try {
      return FoundCheckpoint{*file, read_checkpoint_summary(*file)};
    } catch (const DamagedCheckpoint& error) {  // what only cannot be read now ends the start instead
      refused.push_back({*file, error.problem()});
      log.warning("skipped a checkpoint: {}", error.problem());
    }
  }
  return std::nullopt;
}

std::optional<FoundCheckpoint> newest_or_none(const std::vector<fs::path>& files, const std::string& run_dir,
                                              std::vector<Refused>& refused, const Log& log) {
  auto newest = newest_readable(files, refused, log);
  if (newest || files.empty()) return newest;
  std::vector<std::string> older;
  std::set<std::string> folders;
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    if (*file != files.back()) older.push_back(file->string());
    folders.insert(file->parent_path().string());
  }
  throw_user_error(
      "{} has no checkpoint that can be read: {}{}; restore one from a backup, or move {} away to start over",
      run_dir, find(refused, files.back())->reason,
      older.empty() ? "" : fmt::format("; older ones are refused too: {}", fmt::join(older, ", ")),
      fmt::join(folders, " and "));
}

bool is_run_folder(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "config.ini", ignored) || fs::is_directory(folder / "checkpoints", ignored);
}

}  // namespace llampi::checkpoint
