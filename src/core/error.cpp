// SPDX-License-Identifier: Apache-2.0
#include "llampi/core/error.hpp"

#include <algorithm>
#include <string_view>

namespace llampi {
namespace {

std::string without_null_bytes(std::string text) {
  std::replace(text.begin(), text.end(), '\0', '?');
  return text;
}

/// "src/io/hdf5.cpp:182", wherever it was built.
std::string place_of(const SourceLocation& where) {
  std::string_view file = where.file_name();
  for (const std::string_view folder : {"/src/", "/include/", "/tests/"}) {
    if (const auto at = file.rfind(folder); at != std::string_view::npos) file.remove_prefix(at + 1);
  }
  return fmt::format("{}:{}", file, where.line());
}

}  // namespace

Error::Error(const std::string& message) : std::runtime_error(without_null_bytes(message)) {}

CallError::CallError(const std::string& call, const std::string& reason, SourceLocation where)
    : Error(fmt::format("{} failed: {} ({})", call, reason, place_of(where))) {}

void throw_internal_error(const char* what, SourceLocation where) {
  throw Error(fmt::format("internal error: {} ({})", what, place_of(where)));
}

}  // namespace llampi
