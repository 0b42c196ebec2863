// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace llampi::test {

/// The bytes of a file. @throws std::runtime_error if it cannot be read, so that a wrong path is not an empty file
inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  std::ostringstream text;
  if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (file.bad()) throw std::runtime_error("cannot read " + path.string());  // a folder
  return std::move(text).str();
}

}  // namespace llampi::test
