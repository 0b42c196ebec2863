// SPDX-License-Identifier: Apache-2.0
#include "train/run_checkpoints.hpp"

#include <algorithm>
#include <system_error>

#include "llampi/core/error.hpp"

namespace llampi::train {

namespace fs = std::filesystem;

fs::path fallback_folder(const Config& config) {
  if (config.checkpoint.fallback_dir.empty()) return {};
  std::error_code error;
  const fs::path run_dir = fs::weakly_canonical(fs::absolute(config.run.dir, error), error);
  if (error || run_dir.empty())
    throw_user_error("cannot follow the path run.dir = {}: {}; choose another run.dir", config.run.dir,
                     error.message());
  return fs::path(config.checkpoint.fallback_dir) / run_dir.relative_path();
}

std::vector<fs::path> run_checkpoints(const Config& config) {
  std::vector<fs::path> files;
  if (const auto fallback = fallback_folder(config); !fallback.empty())
    files = checkpoint::list_checkpoints(fallback);
  const auto own = checkpoint::list_checkpoints(config.run.dir);
  files.insert(files.end(), own.begin(), own.end());
  std::stable_sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return checkpoint::checkpoint_step(a) < checkpoint::checkpoint_step(b);
  });
  return files;
}

checkpoint::Retention retention_of(const Config& config) {
  return {.newest = config.checkpoint.keep,
          .every = config.checkpoint.keep_every,
          .weights_only = config.checkpoint.content == CheckpointContent::weights};
}

}  // namespace llampi::train
