// SPDX-License-Identifier: Apache-2.0
#include "cli/console.hpp"

#include <algorithm>
#include <cctype>

namespace llampi::cli {
namespace {

void write(const std::string& text, std::FILE* stream) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace

void print(const std::string& text) { write(text, stdout); }

void print_summary(const std::string& message) {
  constexpr std::size_t kLongest = 4000;
  std::string text = "llampi: " + message;
  while (text.back() == '\n') text.pop_back();
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  // A message may quote somebody else's file, and what is in that must not control the terminal.
  for (char& c : text) {
    if (c != '\n' && std::iscntrl(static_cast<unsigned char>(c)) != 0) c = '?';
  }
  write(text + "\n", stderr);
}

void print_error(const std::string& message) {
  std::string line = message;
  while (line.ends_with('\n')) line.pop_back();
  std::replace(line.begin(), line.end(), '\n', ' ');
  print_summary(line);
}

Log console_log(bool speaks, std::FILE* stream) {
  if (!speaks) return Log();
  return Log([stream](const std::string& line) { write(line + "\n", stream); });
}

}  // namespace llampi::cli
