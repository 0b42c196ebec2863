#include "cli/console.hpp"

#include <cctype>

namespace llampi::cli {
namespace {

void write(const std::string& text, std::FILE* stream) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace

void print(const std::string& text) { write(text, stdout); }

void print_error(const std::string& message) {
  constexpr std::size_t kLongest = 4000;
  std::string line = "llampi: " + message;
  while (line.back() == '\n') line.pop_back();
  if (line.size() > kLongest) line = line.substr(0, kLongest) + "...";
  // A message may quote somebody else's file, and what is in that must not control the terminal.
  for (char& c : line) {
    if (c == '\n') c = ' ';
    if (std::iscntrl(static_cast<unsigned char>(c)) != 0) c = '?';
  }
  write(line + "\n", stderr);
}

Log console_log(bool speaks, std::FILE* stream) {
  if (!speaks) return Log();
  return Log([stream](const std::string& line) { write(line + "\n", stream); });
}

}  // namespace llampi::cli
