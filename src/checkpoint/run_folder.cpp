// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/run_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/folders.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& run_dir) { return run_dir / "checkpoints"; }

std::string file_name(std::int64_t step) { return fmt::format("step-{:08}.h5", step); }

std::optional<std::int64_t> step_of(std::string_view name) {
  constexpr std::string_view kBefore = "step-", kBehind = ".h5";
  if (!name.starts_with(kBefore) || !name.ends_with(kBehind) || name.size() < kBefore.size() + kBehind.size())
    return {};
  const auto step =
      parse_number<std::int64_t>(name.substr(kBefore.size(), name.size() - kBefore.size() - kBehind.size()));
  return step && *step >= 0 && file_name(*step) == name ? step : std::nullopt;
}

std::vector<fs::path> files_in(const fs::path& run_dir) {
  std::error_code error;
  auto files = io::entries_of(folder_of(run_dir), error);
  const bool is_there = error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory;
  if (error && is_there) {
    throw_user_error("cannot read the folder {}: {}", folder_of(run_dir).string(), error.message());
  }
  return files;
}

void remove_file(const fs::path& file) {
  std::error_code error;
  fs::remove(file, error);
  if (error) throw_user_error("cannot delete {}: {}", file.string(), error.message());
}

/// Whether the checkpoint has optimizer state. Nothing where the file cannot be read just now.
std::optional<bool> finds_optimizer(const fs::path& file) {
  try {
    return read_checkpoint_summary(file).has_optimizer;
  } catch (const DamagedCheckpoint&) {
    return false;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<std::int64_t> checkpoint_step(const fs::path& file) {
  return step_of(file.filename().string());
}

fs::path checkpoint_path(const fs::path& run_dir, std::int64_t step) {
  return folder_of(run_dir) / file_name(step);
}

std::vector<fs::path> list_checkpoints(const fs::path& run_dir) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  for (const auto& entry : files_in(run_dir)) {
    const auto step = step_of(entry.filename().string());
    if (!step) continue;
    std::error_code error;
    const auto type = fs::status(entry, error).type();
    if (type == fs::file_type::none) throw_user_error("cannot read {}: {}", entry.string(), error.message());
    if (type == fs::file_type::regular) found.emplace_back(*step, entry);
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> checkpoints;
  for (auto& [step, path] : found) checkpoints.push_back(std::move(path));
  return checkpoints;
}

std::vector<fs::path> unfinished_checkpoints(const fs::path& run_dir) {
  auto files = files_in(run_dir);
  std::erase_if(files, [](const fs::path& file) {
    return file.extension() != ".tmp" || !step_of(file.stem().string());
  });
  return files;
}

void remove_unfinished_checkpoints(const fs::path& run_dir) {
  for (const auto& file : unfinished_checkpoints(run_dir)) remove_file(file);
}

bool has_optimizer(const fs::path& file) { return finds_optimizer(file).value_or(false); }

std::vector<bool> stay(const std::vector<std::int64_t>& steps, const Retention& retention,
                       const std::function<std::optional<bool>(std::size_t)>& has_optimizer) {
  require(retention.newest >= 1, "at least one checkpoint is kept");
  std::vector<bool> stays;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    stays.push_back(steps.size() - i <= static_cast<std::size_t>(retention.newest) ||
                    (retention.every > 0 && steps[i] % retention.every == 0));
  }
  if (std::ranges::find(stays, false) == stays.end()) return stays;
  for (std::size_t i = steps.size(); i-- > 0;) {
    const auto has = has_optimizer(i);
    if (has == false) continue;
    stays[i] = true;
    if (has) break;
  }
  return stays;
}

std::vector<fs::path> surplus_checkpoints(const RunCheckpoints& run, const Retention& retention) {
  auto files = run.fallback.empty() ? std::vector<fs::path>() : list_checkpoints(run.fallback);
  std::ranges::copy(list_checkpoints(run.run_dir), std::back_inserter(files));
  std::ranges::stable_sort(files, {}, [](const fs::path& file) { return *checkpoint_step(file); });
  std::erase_if(files, [&](const fs::path& file) {
    return *checkpoint_step(file) > run.step || std::ranges::find(run.damaged, file) != run.damaged.end();
  });
  std::vector<std::int64_t> steps;
  for (const auto& file : files) steps.push_back(*checkpoint_step(file));
  const auto stays = stay(steps, retention, [&](std::size_t i) { return finds_optimizer(files[i]); });
  std::vector<fs::path> surplus;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!stays[i]) surplus.push_back(files[i]);
  }
  return surplus;
}

void prune_checkpoints(const RunCheckpoints& run, const Retention& retention) {
  remove_unfinished_checkpoints(run.run_dir);
  std::optional<UserError> first;
  RunCheckpoints readable = run;
  try {
    if (!run.fallback.empty()) list_checkpoints(run.fallback);
  } catch (const UserError& error) {  // the run does not need it
    first = error;
    readable.fallback.clear();
  }
  for (const auto& file : surplus_checkpoints(readable, retention)) {
    try {
      remove_file(file);
    } catch (const UserError& error) {  // the others go
      if (!first) first = error;
    }
  }
  if (first) throw UserError(*first);
}

}  // namespace llampi::checkpoint
