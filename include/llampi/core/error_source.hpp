// SPDX-License-Identifier: Apache-2.0
// Errors about a file say which option named it.
#pragma once

#include <filesystem>
#include <string>

#include "llampi/core/error.hpp"

namespace llampi {

/// Returns what `work` returns. A UserError of it that begins with `path` is thrown with `source` in front:
/// "data.train = notes.txt is not an HDF5 file". Other errors stay as they are.
/// @param source "data.train = " or "--data "
template <class Work>
auto with_source(const std::string& source, const std::filesystem::path& path, const Work& work) {
  try {
    return work();
  } catch (const UserError& error) {
    const std::string sentence = error.what(), name = path.string();
    if (name.empty() || !sentence.starts_with(name)) throw;
    throw UserError(source + sentence);
  }
}

}  // namespace llampi
