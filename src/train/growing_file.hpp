// SPDX-License-Identifier: Apache-2.0
// A file that a run appends to, whatever becomes of the disk meanwhile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "llampi/io/posix_file.hpp"

namespace llampi::train {

/// What is appended is given to the system at once or, while that fails, kept in memory. One rank has it.
class GrowingFile {
 public:
  /// Opens an existing file. @throws UserError if it cannot be written
  explicit GrowingFile(const std::filesystem::path& file);

  /// Empty if all of it is written, else why not. Does not throw: whether the disk stays bad shows in sync().
  std::string append(std::string_view bytes);
  /// Everything is on disk when it returns. @throws UserError if there is no room, CallError for what the user cannot mend
  void sync();
  /// That which could not be written.
  const std::string& unwritten() const { return unwritten_; }

 private:
  void write();

  io::PosixFile file_;
  std::int64_t bytes_ = 0;
  std::string unwritten_;
};

}  // namespace llampi::train
