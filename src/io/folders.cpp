// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/folders.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace llampi::io {

namespace fs = std::filesystem;

std::vector<fs::path> entries_of(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> entries;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    entries.push_back(entry->path());
  return entries;
}

std::vector<fs::path> missing_paths(const fs::path& path) {
  std::vector<fs::path> paths;
  std::error_code ignored;
  for (auto next = path; !next.empty(); next = next.parent_path()) {
    if (fs::exists(fs::symlink_status(next, ignored))) break;
    paths.push_back(next);
  }
  return paths;
}

fs::path nearest_existing(const fs::path& path) {
  std::error_code ignored;
  fs::path nearest = fs::absolute(path, ignored);
  while (!fs::exists(nearest, ignored) && nearest.has_relative_path()) nearest = nearest.parent_path();
  return nearest;
}

std::string hub_advice(const fs::path& missing) {
  std::error_code ignored;
  const bool two_words =
      std::distance(missing.begin(), missing.end()) == 2 && !fs::exists(missing.parent_path(), ignored);
  constexpr std::array<std::string_view, 3> kFiles{".h5", ".json", ".model"};
  const bool is_name =
      missing.has_filename() && std::ranges::find(kFiles, missing.extension().string()) == kFiles.end();
  return two_words && is_name
             ? "; a model of the Hugging Face Hub is downloaded first: hf download NAME --local-dir FOLDER"
             : "";
}

}  // namespace llampi::io
