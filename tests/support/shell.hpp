// SPDX-License-Identifier: Apache-2.0
// Runs programs as a user does.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "support/read_text.hpp"

namespace llampi::test {

struct Ending {
  int status = -1;  ///< exit status
  std::string out, err;

  /// The lines of standard error that the program wrote; mpirun adds lines of its own.
  std::vector<std::string> complaints() const;
};

/// Runs a command line in the shell, in `folder`.
Ending shell(const std::filesystem::path& folder, const std::string& command);

/// A folder of its own, removed with all that is in it.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Writes a file there; returns its name.
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

}  // namespace llampi::test
