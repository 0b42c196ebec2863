// SPDX-License-Identifier: Apache-2.0
// Plain files by descriptor: reads at an offset from any thread, and writes that end up on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "llampi/core/error.hpp"

namespace llampi::io {

/// Of what a path leads to; not_found if there is nothing. @throws UserError where that is not known, as without permission
std::filesystem::file_type type_of(const std::filesystem::path& path);

/// Of a failure that the user can fix: no permission, no space, no such folder, ...
class FileError : public UserError {
 public:
  FileError(const std::string& message, int error_number) : UserError(message), error_number_(error_number) {}
  /// As errno has it: ENOSPC, EACCES, ...
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

/// What became of locking a file.
enum class Lock : std::uint8_t { locked, taken, unsupported };

/// An open file. Failures that the user can fix are FileErrors that name the file, others CallErrors. The
/// destructor closes without a check: sync important data before.
class PosixFile {
 public:
  PosixFile() = default;
  static PosixFile open_for_reading(const std::filesystem::path& path);
  static PosixFile open_for_writing(const std::filesystem::path& path);  ///< an existing file, kept as it is
  static PosixFile create(const std::filesystem::path& path);            ///< or replace
  static PosixFile open_or_create(const std::filesystem::path& path);    ///< for writing
  /// A new file in the folder of `path`, without a name: it disappears when it is closed, however the program
  /// ends.
  static PosixFile create_unnamed(const std::filesystem::path& path);
  /// Gone when it is closed. path() leads to it for this process. @param name for who looks at open files
  static PosixFile in_memory(const char* name);
  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}
  PosixFile& operator=(PosixFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const;
  /// Reads up to bytes.size() from the current position; returns how many, 0 at the end of the file.
  std::size_t read(std::span<std::byte> bytes) const;
  /// The same from `offset`, and fewer bytes only where the file ends.
  std::size_t read_at(std::int64_t offset, std::span<std::byte> bytes) const;
  /// Tells the operating system which bytes will be wanted next; it may do nothing about it.
  void read_ahead(std::int64_t offset, std::int64_t bytes) const;
  void write_at(std::int64_t offset, std::span<const std::byte> bytes) const;
  /// Nothing is left from `bytes` on.
  void truncate(std::int64_t bytes) const;
  /// Makes `text` all that there is in it, on disk. Where there is no room for it, the file stays as it was, if the file
  /// system can reserve room.
  void replace_content(std::string_view text) const;
  void sync() const;
  /// Until it is closed; does not wait.
  Lock lock() const;
  /// Whether the path still leads to this file: it was not removed, and no other one has its name.
  bool is_at_its_path() const;

 private:
  PosixFile(const std::filesystem::path& path, int flags, const char* action);
  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// Everything up to its end, of a pipe too. @throws Error as PosixFile does
std::string read_whole(const std::filesystem::path& path);

/// Writes a file that appears when it is complete. Leaves nothing if it fails.
/// @param on_disk when it appears; if not, which is faster, it outlives this process but not the machine
void write_whole(const std::filesystem::path& path, std::string_view text, bool on_disk = true);

/// Creates the folder, and those that it lies in, unless it is there; an empty path does nothing.
/// @param advice "; choose another run.dir". @throws UserError "cannot create the folder X: why" and the advice
void create_folder(const std::filesystem::path& folder, std::string_view advice = {});

/// Gives a synced file its final name, permanently: the folder is synced as well.
void rename_into_place(const std::filesystem::path& from, const std::filesystem::path& to);
/// What happened to names in the folder of a file is on disk.
void sync_folder_of(const std::filesystem::path& file);

}  // namespace llampi::io
