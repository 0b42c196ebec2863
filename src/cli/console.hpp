// SPDX-License-Identifier: Apache-2.0
// What the program prints.
#pragma once

#include <cstdio>
#include <string>

#include "llampi/core/log.hpp"

namespace llampi::cli {

/// Clears the line of a terminal on which something that changes is shown.
inline constexpr const char* kClearLine = "\r\033[K";

/// Whether people see the stream as it is written. Open MPI's mpirun gives a terminal to the ranks that it starts, wherever its
/// own output goes: then that counts.
bool is_terminal(std::FILE* stream);
struct TerminalSize {
  int columns = 80, rows = 24;
};
/// Of the terminal that the stream is; the usual one where it is none.
TerminalSize terminal_size(std::FILE* stream);
/// What of a line fits into a row of the terminal: one that wraps could not be cleared.
std::string cut_to_terminal(const std::string& line, std::FILE* stream);

/// On standard output, at once. @throws Error if it cannot be written, as where a disk is full
void print(const std::string& text);

/// "llampi: <message>", one line on standard error, in one piece so that ranks do not mix.
void print_error(const std::string& message);

/// The same of a message of several lines, which stay apart.
void print_summary(const std::string& message);

/// Lines on `stream`, each at once; silent unless `speaks`. On a terminal a line of progress is replaced by the next one.
Log console_log(bool speaks, std::FILE* stream);

}  // namespace llampi::cli
