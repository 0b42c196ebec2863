// SPDX-License-Identifier: Apache-2.0
// Files and pipes that are read once, from the beginning to the end, compressed or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "llampi/core/error.hpp"

namespace llampi::io {

/// Of compressed data that are damaged or end too early.
class UnpackError : public UserError {
 public:
  /// @param problem the end of a sentence that begins with the file's name
  UnpackError(const std::filesystem::path& path, const std::string& problem)
      : UserError(path.string() + " " + problem), problem_(problem) {}
  const std::string& problem() const { return problem_; }

 private:
  std::string problem_;
};

/// What a file that gzip or zstd has compressed holds, also one of several members or frames; any other file as it is. Its first
/// bytes show which it is.
class InputFile {
 public:
  /// @throws Error as PosixFile does
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(InputFile&&) noexcept;
  InputFile& operator=(InputFile&&) noexcept;

  /// Fills `bytes`; returns how many there are, fewer only at the end.
  /// @throws UnpackError; Error as PosixFile does
  std::size_t read(std::span<std::byte> bytes);
  /// How many bytes of the file itself have been read.
  std::int64_t file_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llampi::io
