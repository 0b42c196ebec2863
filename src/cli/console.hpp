// SPDX-License-Identifier: Apache-2.0
// What the program prints.
#pragma once

#include <cstdio>
#include <string>

#include "llampi/core/log.hpp"

namespace llampi::cli {

/// On standard output, at once.
void print(const std::string& text);

/// "llampi: <message>", one line on standard error, in one piece so that ranks do not mix.
void print_error(const std::string& message);

/// The same of a message of several lines, which stay apart.
void print_summary(const std::string& message);

/// Lines on `stream`, each at once; silent unless `speaks`.
Log console_log(bool speaks, std::FILE* stream);

}  // namespace llampi::cli
