// Files that a command writes for its user: what they may replace, and under which name they are written.
// Private to the library. docs/formats.md has the table for users.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "llampi/core/log.hpp"

namespace llampi {

/// Where a command writes one file, and which files there it replaces: those of the kind that it writes.
struct OutputFile {
  std::filesystem::path path;
  std::string kind;  ///< "a token file": what is_own() is true for
  std::function<bool(const std::filesystem::path&)> is_own;
  bool overwrite = false;  ///< any regular file may be replaced

  /// For before the work begins. @throws UserError if something else is there
  void check() const;
  /// Gives a file, written and synced, its name: where nothing was, nothing that has come meanwhile is
  /// replaced but by the same rule. @throws UserError as check() does; then the temporary file is still there
  void place(const std::filesystem::path& temporary) const;
};

/// The file that a symbolic link leads to, also one that is not there yet; another path as it is. For the
/// path of an OutputFile: a new name would replace the link and leave the file.
std::filesystem::path follow_links(std::filesystem::path path);

/// A name beside `path` that no other process uses: it holds host, its start, process and a random number.
std::filesystem::path temporary_beside(const std::filesystem::path& path);

/// Removes the temporary files that processes of this host, dead since it was started, left beside `path`. Of
/// those whose process
/// may live, on this host or another one, nothing is known: each is named in a warning if it was not written
/// to for a day.
void clear_leftovers(const std::filesystem::path& path, const Log& log);
/// The same beside all files of a folder.
void clear_leftovers_in(const std::filesystem::path& folder, const Log& log);

/// Removes a temporary file when it goes out of scope; nothing if it is there no longer.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path path) : path_(std::move(path)) {}
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace llampi
