// SPDX-License-Identifier: Apache-2.0
// A line on the terminal that says how far a command is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace llampi::cli {

/// Nothing where standard error is no terminal. The destructor clears the line.
class Progress {
 public:
  /// @param total_bytes of the input; 0: not known
  explicit Progress(std::int64_t total_bytes);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// May be called often.
  void show(std::int64_t bytes);
  void clear();            ///< before anything else is printed
  double seconds() const;  ///< since the beginning

 private:
  using Clock = std::chrono::steady_clock;
  const std::int64_t total_bytes_;
  const bool is_terminal_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point shown_{};
  bool is_shown_ = false;
};

/// "[#####               ]  25 %  12.3 MB/s  1m 20s left"
std::string progress_line(std::int64_t bytes, std::int64_t total_bytes, double seconds);

}  // namespace llampi::cli
