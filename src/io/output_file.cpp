// SPDX-License-Identifier: Apache-2.0
#include "llampi/io/output_file.hpp"

#include <unistd.h>

#include <span>

#include "llampi/core/error.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/temporary_file.hpp"

namespace llampi::io {
namespace fs = std::filesystem;

void OutputFile::check() const {
  std::error_code ignored;
  const fs::path folder = path.parent_path();
  if (!makes_folder && !folder.empty() && !fs::is_directory(folder, ignored))
    throw_user_error("{}: there is no folder {}; create it, or name another file", name(), folder.string());
  const auto status = fs::status(path, ignored);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status)) throw_user_error("{} is a folder: give the name of a file", name());
  if (!fs::is_regular_file(status)) throw_user_error("{} is not a regular file: name another output", name());
  if (overwrite || is_own(path)) return;
  throw_user_error("{} already exists and is not {}: {}", name(), kind, advice);
}

void OutputFile::place(const fs::path& temporary) const {
  // A link, unlike a new name, replaces nothing.
  if (::link(temporary.c_str(), path.c_str()) == 0) {
    fs::remove(temporary);
    sync_folder_of(path);
    return;
  }
  check();  // there is a file, or no hard links
  rename_into_place(temporary, path);
}

void OutputFile::write(std::string_view text) const {
  const TemporaryFile temporary(temporary_beside(path));
  const auto file = PosixFile::create(temporary.path());
  file.write_at(0, std::as_bytes(std::span(text)));
  file.sync();
  place(temporary.path());
}

fs::path follow_links(fs::path path) {
  constexpr int kMostLinks = 40;  // Linux follows no more
  std::error_code error;
  // The links of /proc to pipes have a text that is no path.
  if (const auto status = fs::status(path, error); fs::exists(status) && !fs::is_regular_file(status))
    return path;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    const auto target = fs::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / target;  // an absolute one replaces it
  }
  return path;
}

}  // namespace llampi::io
