// SPDX-License-Identifier: Apache-2.0
// A file that all ranks write at once through MPI-IO, each its own bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace llampi::io {

/// How a parallel file system should stripe a file over its servers; 0: the folder's setting.
struct Striping {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
};

/// Nothing here is collective. A rank's pieces are long runs of bytes, which do not need to be gathered, and in a
/// collective call the other ranks would hang if one rank's disk is full.
class SharedFile {
 public:
  /// By one rank: creates a file, or empties it, spread over servers as `striping` says. @throws UserError
  static void create(const std::filesystem::path& path, const Striping& striping);

  /// The file exists. @throws CallError
  explicit SharedFile(const std::filesystem::path& path);
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  /// @throws CallError
  void write_at(std::int64_t offset, std::span<const std::byte> bytes) const;
  /// Waits until all that was written here is on the disk. @throws CallError
  void sync() const;

 private:
  struct Handle;
  std::unique_ptr<Handle> file_;
};

}  // namespace llampi::io
