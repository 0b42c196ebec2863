// SPDX-License-Identifier: Apache-2.0
// Files under names of their own while they are written.
#pragma once

#include <filesystem>
#include <string_view>
#include <utility>

#include "llampi/core/log.hpp"

namespace llampi::io {

/// A name in the folder of `path` that no other process uses: it contains host, its start, process and a random number.
std::filesystem::path temporary_beside(const std::filesystem::path& path);

/// The path that such a file is written for; any other path as it is. For messages.
std::filesystem::path output_of(const std::filesystem::path& path);

/// Removes the temporary files and folders that processes of this host, dead since it was started, left next to `path`.
/// If the process of a file may still be alive, on this host or another one, the file is kept, and a warning
/// names it if it was not written to for a day.
/// @param kept_entry of a folder: stays, and the folder with it
void clear_leftovers(const std::filesystem::path& path, const Log& log, std::string_view kept_entry = {});
/// The same for all files of a folder.
void clear_leftovers_in(const std::filesystem::path& folder, const Log& log);

/// Removes a temporary file, or a folder with what is in it, when it goes out of scope; nothing if it is there no longer.
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

}  // namespace llampi::io
