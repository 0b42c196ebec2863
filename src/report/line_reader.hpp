// SPDX-License-Identifier: Apache-2.0
// Lines of a file that another process writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace llampi::report {

/// Reads what has been added to a file since the last time. Takes a few times `piece_bytes` of memory, however long file and lines are.
class LineReader {
 public:
  explicit LineReader(std::filesystem::path file, std::size_t piece_bytes = std::size_t{1} << 20)
      : file_(std::move(file)), piece_bytes_(piece_bytes) {}

  /// A last line without an end is left for the next time. One that is longer than a piece comes in parts.
  /// @param restart is called first where the file does not go on from what was read: it was replaced or cut back
  /// @param visit is called for each line, without its end
  /// @throws Error if the file cannot be read. Then the next call goes on from there
  void read(const std::function<void()>& restart, const std::function<void(std::string_view)>& visit);

 private:
  std::filesystem::path file_;
  std::size_t piece_bytes_;
  std::int64_t bytes_ = 0;  ///< that are read
  std::string tail_;        ///< the last of them, by which the file is known again
};

}  // namespace llampi::report
