// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/error.hpp"

namespace llampi {

CallError::CallError(const std::string& call, const std::string& reason, SourceLocation where)
    : Error(fmt::format("{} failed: {} ({}:{})", call, reason, where.file_name(), where.line())) {}

void throw_internal_error(const char* what, SourceLocation where) {
  throw Error(fmt::format("internal error: {} ({}:{})", what, where.file_name(), where.line()));
}

}  // namespace llampi
