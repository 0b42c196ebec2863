// SPDX-License-Identifier: Apache-2.0
// A temporary file that grows at its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "llampi/io/posix_file.hpp"

namespace llampi::io {

/// Written from its beginning to its end, then read. It has no name, and is gone whatever ends the program.
/// Failures are those of PosixFile.
class Spool {
 public:
  /// @param path of the output; the spool is in the same folder
  explicit Spool(const std::filesystem::path& path);

  /// The low `width` bytes (1, 2 or 4) of each number, little-endian, as are the machines we run on.
  void append(std::span<const std::int32_t> numbers, std::size_t width = 4);
  void append(std::span<const std::uint8_t> bytes);
  void append_ones(std::size_t count);

  /// Bytes from `offset` on; all of them must have been appended.
  void read(std::int64_t offset, std::span<std::byte> bytes);
  /// Everything, to `place` of `file`.
  void copy_to(const PosixFile& file, std::int64_t place);

 private:
  void flush();
  /// Room for `count` more elements of `width` bytes, or as many as the buffer takes; returns how many.
  std::size_t extend(std::size_t count, std::size_t width);

  std::filesystem::path path_;
  PosixFile file_;
  std::int64_t written_ = 0;  // bytes, without those in the buffer
  std::vector<std::byte> buffer_;
};

}  // namespace llampi::io
