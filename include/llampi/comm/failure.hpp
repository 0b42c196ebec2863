// SPDX-License-Identifier: Apache-2.0
// What a rank's work threw, as it travels to the others.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "llampi/comm/forward.hpp"
#include "llampi/core/config_error.hpp"

namespace llampi::comm {

struct Failure {
  enum class Kind : std::uint8_t { none, config, user, other };
  Kind kind = Kind::none;
  std::string host;
  std::string message;        ///< what()
  ConfigError::Parts config;  ///< Kind::config

  auto members() { return std::tie(kind, host, message, config); }
  bool by_user() const { return kind == Kind::config || kind == Kind::user; }
  bool alike(const Failure& other) const { return kind == other.kind && message == other.message; }
  /// Throws the same on every rank: ConfigError, UserError, or CommonError for anything else.
  /// @param where stands before the message, unless it is empty: "rank 1 on host"
  [[noreturn]] void rethrow(const std::string& where) const;
};

/// Of the exception that is being handled.
Failure current_failure(const World& world);

/// Runs `work`, and says how it failed, if it did.
template <class Work>
Failure failure_of(const World& world, const Work& work) {
  try {
    work();
    return {};
  } catch (...) {
    return current_failure(world);
  }
}

}  // namespace llampi::comm
