// SPDX-License-Identifier: Apache-2.0
// Token files with known ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "llampi/data/token_file.hpp"
#include "support/files.hpp"

namespace llampi::test {

inline std::filesystem::path write_tokens(const std::filesystem::path& path, std::int64_t vocabulary,
                                          const std::vector<std::vector<std::int32_t>>& documents) {
  data::TokenFileWriter writer(path, vocabulary, "test");
  for (const auto& document : documents) writer.append_document(document);
  writer.close();
  return path;
}

/// Of the documents, and last the total length.
inline std::vector<std::uint64_t> all_starts(const data::TokenFile& file) {
  return file.read_starts(0, file.documents() + 1);
}

inline std::vector<std::int32_t> read_all(const data::TokenFile& file) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens()));
  file.read(0, ids);
  return ids;
}

}  // namespace llampi::test
