// SPDX-License-Identifier: Apache-2.0
// Errors. The library never prints and never exits: it throws one of these, and `cli` turns it into an exit
// status.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "llampi/core/source_location.hpp"

namespace llampi {

/// Anything that went wrong while the program ran (exit status 1).
class Error : public std::runtime_error {
 public:
  /// A null byte, as a name in a file may have one, would end what(): it is replaced.
  explicit Error(const std::string& message);
};

/// The user's input is wrong, or the job cannot fit (exit status 2).
/// The message is one sentence: what is wrong, where, what to do.
class UserError : public Error {
 public:
  using Error::Error;
};

/// Memory that cannot be had.
class OutOfMemory : public UserError {
 public:
  using UserError::UserError;
};

/// A library call (MPI, HDF5, the operating system, ...) failed.
class CallError : public Error {
 public:
  /// `call` is the function's name, `reason` the library's own words.
  CallError(const std::string& call, const std::string& reason,
            SourceLocation where = SourceLocation::current());
};

/// Throws UserError with a formatted message.
template <class... Args>
[[noreturn]] void throw_user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void throw_internal_error(const char* what, SourceLocation where);
/// Throws Error if `condition` is false: for broken invariants of our own, not for the user's mistakes.
inline void require(bool condition, const char* what, SourceLocation where = SourceLocation::current()) {
  if (!condition) throw_internal_error(what, where);
}

}  // namespace llampi
