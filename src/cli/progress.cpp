// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "cli/console.hpp"
#include "llampi/core/text.hpp"

namespace llampi::cli {
namespace {

constexpr auto kBetweenLines = std::chrono::milliseconds(200);
constexpr int kBarColumns = 30;

void write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

std::string progress_line(std::int64_t bytes, std::int64_t total_bytes, double seconds) {
  const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  const auto speed = fmt::format("{:.1f} MB/s", rate / 1e6);
  if (total_bytes <= 0) return fmt::format("{}  {}", format_bytes(bytes), speed);
  const double part = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total_bytes));
  const auto filled = static_cast<std::size_t>(part * kBarColumns);
  const double left =
      rate > 0 ? static_cast<double>(std::max<std::int64_t>(total_bytes - bytes, 0)) / rate : 0;
  return fmt::format("[{:<{}}] {:3.0f} %  {}  {} left", std::string(filled, '#'), kBarColumns,
                     std::floor(100 * part), speed, rate > 0 ? format_duration(left) : "?");
}

Progress::Progress(std::int64_t total_bytes) : total_bytes_(total_bytes), is_terminal_(is_terminal(stderr)) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (std::exchange(is_shown_, false)) write(kClearLine);
}

void Progress::show(std::int64_t bytes) {
  const auto now = Clock::now();
  if (!is_terminal_ || now - shown_ < kBetweenLines) return;
  shown_ = now;
  is_shown_ = true;
  write(kClearLine + cut_to_terminal(progress_line(bytes, total_bytes_, seconds()), stderr));
}

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

}  // namespace llampi::cli
