// SPDX-License-Identifier: Apache-2.0
// One token file that documents are added to. Private to the library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "data/row_packer.hpp"
#include "llampi/data/tokenize_options.hpp"
#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::data {

/// Documents one after another, as they come, or conversations in rows.
class DocumentOutput {
 public:
  DocumentOutput(const std::filesystem::path& path, const tokenizer::Tokenizer& tokenizer,
                 const TokenizeOptions& options);

  /// A part of the document under way; a conversation comes as a whole and with its mask.
  void append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask);
  void end_document();
  std::int64_t documents() const { return statistics_.documents; }
  /// The file is on disk, under a temporary name.
  OutputStatistics complete();
  /// It gets its name.
  void place();

 private:
  TokenFileWriter writer_;
  std::optional<RowPacker> packer_;
  OutputStatistics statistics_;
  TokenFileNotes notes_;
  std::int64_t length_ = 0;  // of the document under way
};

}  // namespace llampi::data
