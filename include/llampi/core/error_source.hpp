// SPDX-License-Identifier: Apache-2.0
// Errors about a file say which option named it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "llampi/core/error.hpp"

namespace llampi {

/// Whether a sentence begins with this path, or with one of a file in that folder, and not with a longer name.
inline bool begins_with_path(const std::string& sentence, const std::string& path) {
  if (path.empty() || !sentence.starts_with(path)) return false;
  constexpr std::string_view kAfter = "/ :,;)\"'";
  return path.ends_with('/') || sentence.size() == path.size() ||
         kAfter.find(sentence[path.size()]) != kAfter.npos;
}

/// Returns what `work` returns. A UserError of it that begins with `path` is thrown with `source` in front:
/// "data.train = notes.txt is not an HDF5 file". Other errors stay as they are.
/// @param source "data.train = " or "--data "
template <class Work>
auto with_source(const std::string& source, const std::filesystem::path& path, const Work& work) {
  try {
    return work();
  } catch (const UserError& error) {
    if (!begins_with_path(error.what(), path.string())) throw;
    throw UserError(source + error.what());
  }
}

}  // namespace llampi
