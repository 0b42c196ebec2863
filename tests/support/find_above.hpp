// SPDX-License-Identifier: Apache-2.0
// Where the things lie that a test program belongs to.
#pragma once

#include <filesystem>

namespace llampi::test {

/// `name` in this program's folder or the nearest one above it: so it is found in the build folder or in the
/// repository around it, and in a bundle (docs/bundle.md). Empty if there is none.
inline std::filesystem::path find_above(const std::filesystem::path& name) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path(); !folder.empty();
       folder = folder.parent_path()) {
    if (fs::exists(folder / name, error)) return folder / name;
    if (folder == folder.parent_path()) break;
  }
  return {};
}

}  // namespace llampi::test
