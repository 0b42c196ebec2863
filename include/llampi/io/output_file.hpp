// SPDX-License-Identifier: Apache-2.0
// Files that a command writes for its user: what they may replace, and under which name they are written.
// docs/formats.md has the table for users.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace llampi::io {

/// Where a command writes one file, and which files there it replaces: those of the kind that it writes.
struct OutputFile {
  std::filesystem::path path;
  std::string kind;  ///< "a token file": what is_own() is true for
  std::function<bool(const std::filesystem::path&)> is_own;
  bool overwrite = false;     ///< any regular file may be replaced
  bool makes_folder = false;  ///< its writer makes the folder where there is none
  std::string option =
      {};  ///< that names the path, for messages: "log.prometheus"; empty: they begin with the path
  std::string advice = "name another file, or replace it with --overwrite";  ///< where a file is not replaced

  /// For before the work begins. @throws UserError if something else is there, or no folder
  void check() const;
  std::string name() const {
    return (option.empty() ? "" : option + " = ") + path.string();
  }  ///< in messages
  /// Gives a file, written and synced, its name: where nothing was, nothing that has come meanwhile is
  /// replaced but by the same rule. @throws UserError as check() does; then the temporary file is still there
  void place(const std::filesystem::path& temporary) const;
  /// Writes a whole file under a temporary name and places it. @throws Error, and then leaves nothing
  void write(std::string_view text) const;
};

/// The target of a symbolic link to a file, even if it does not exist; any other path unchanged. For the
/// path of an OutputFile: otherwise renaming would replace the link and leave its target unchanged.
std::filesystem::path follow_links(std::filesystem::path path);

}  // namespace llampi::io
