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
  /// A log without a sink is silent.
  Log() = default;
  explicit Log(Sink sink) : sink_(std::move(sink)) {}

  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    if (sink_) sink_(fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) const {
    if (sink_) sink_("warning: " + fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  Sink sink_;
};

}  // namespace llampi
