// SPDX-License-Identifier: Apache-2.0
// Where messages go. Parts below `cli` never print: they are given a Log, which on every rank but 0 is
// silent.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>

namespace llampi {

class Log {
 public:
  using Sink = std::function<void(const std::string& line)>;
  /// A log without a sink discards all messages.
  Log() = default;
  explicit Log(Sink sink) : sink_(std::move(sink)) {}
  /// @param progress where lines go that a terminal may replace by the next one
  Log(Sink sink, Sink progress) : sink_(std::move(sink)), progress_(std::move(progress)) {}

  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    if (sink_) sink_(fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    if (sink_) sink_("warning: " + fmt::format(format, std::forward<Args>(args)...));
  }

  /// How far something is.
  template <class... Args>
  void progress(fmt::format_string<Args...> format, Args&&... args) const {
    const Sink& sink = progress_ ? progress_ : sink_;
    if (sink) sink(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  Sink sink_, progress_;
};

}  // namespace llampi
