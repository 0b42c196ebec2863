// SPDX-License-Identifier: Apache-2.0
// The names that users have for the options of the library.
#pragma once

#include <exception>
#include <string>

namespace llampi::cli {

/// The key of an option as lower parts spell it: "fsdp.wrap_modules" of "wrap.modules"; what has none stays.
std::string key_of(const std::string& field);

/// what(), with keys where the error is about options.
std::string sentence_of(const std::exception& error);

}  // namespace llampi::cli
