// SPDX-License-Identifier: Apache-2.0
#include "support/shell.hpp"

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace llampi::test {
namespace {

std::string quoted(const std::string& path) { return "'" + path + "'"; }

}  // namespace

std::vector<std::string> Ending::complaints() const {
  std::vector<std::string> lines;
  std::istringstream text(err);
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("llampi: ")) lines.push_back(line);
  }
  return lines;
}

Ending shell(const std::filesystem::path& folder, const std::string& command) {
  const ScratchFolder outputs;
  const auto out = outputs.path() / "out", err = outputs.path() / "err";
  const std::string line = "cd " + quoted(folder.string()) + " && { " + command + "; } >" +
                           quoted(out.string()) + " 2>" + quoted(err.string());
  const int status = std::system(line.c_str());
  if (status == -1) throw std::runtime_error("system() failed");
  // The shell tells of a signal as 128 + its number.
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text(out), read_text(err)};
}

ScratchFolder::ScratchFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "llampi-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp() failed");
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ScratchFolder::write(const std::string& name, const std::string& text) const {
  std::ofstream(path_ / name, std::ios::binary) << text;
  return name;
}

}  // namespace llampi::test
