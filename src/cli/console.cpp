#include "cli/console.hpp"

#include <algorithm>

namespace llampi::cli {
namespace {

void write(const std::string& text, std::FILE* stream) {
  std::fwrite(text.data(), 1, text.size(), stream);
  std::fflush(stream);
}

}  // namespace

void print(const std::string& text) { write(text, stdout); }

void print_error(const std::string& message) {
  std::string line = "llampi: " + message;
  while (line.back() == '\n') line.pop_back();
  std::replace(line.begin(), line.end(), '\n', ' ');
  write(line + "\n", stderr);
}

Log console_log(bool speaks, std::FILE* stream) {
  if (!speaks) return Log();
  return Log([stream](const std::string& line) { write(line + "\n", stream); });
}

}  // namespace llampi::cli
