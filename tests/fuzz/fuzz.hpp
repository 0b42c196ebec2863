// SPDX-License-Identifier: Apache-2.0
// What all fuzz targets do: a parser either accepts its input or throws a UserError. Anything else - another
// exception, what the sanitizers find, a broken promise - ends the process, and libFuzzer keeps the input.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "llampi/core/error.hpp"

namespace llampi::fuzz {

/// Fails if a parser breaks what it promises.
inline void expect(bool condition, const char* promise) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", promise);
  std::abort();
}

/// Runs a parser on the fuzzer's input.
template <class Parse>
int refuse_or_accept(const std::uint8_t* data, std::size_t size, Parse parse) {
  try {
    parse(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const UserError& error) {
    expect(*error.what() != '\0', "a refusal says why");
  }
  return 0;
}

}  // namespace llampi::fuzz
