// SPDX-License-Identifier: Apache-2.0
// Conversations, packed into rows of one sequence length. Private to the library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "llampi/data/token_file.hpp"
#include "llampi/io/spool.hpp"

namespace llampi::data {

/// Keeps what it is given in an unnamed temporary file beside the token file until all are known, and in
/// memory some 40 bytes per conversation.
class RowPacker {
 public:
  struct Rows {
    std::int64_t rows = 0;
    std::int64_t padding = 0;            ///< tokens, without the one behind the last row
    std::int64_t padding_documents = 0;  ///< with that one
    std::int64_t cut = 0;                ///< conversations longer than a row
  };

  /// @param padding id of the tokens that fill rows
  RowPacker(const std::filesystem::path& output, std::int64_t seq_len, std::int32_t padding);

  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask);
  /// Row i is the tokens from i * seq_len on, each conversation a document, and so is what fills a row, with
  /// mask 0. Behind the last row stands one more such token: the label of its last.
  Rows write(TokenFileWriter& writer);

 private:
  void write_conversation(TokenFileWriter& writer, std::size_t conversation);
  void write_padding(TokenFileWriter& writer, std::int64_t tokens) const;

  const std::int64_t seq_len_;
  const std::int32_t padding_;
  io::Spool spool_;                      // ids, whose sign bit is the mask
  std::vector<std::int64_t> begins_{0};  // of each conversation in the spool, and its end; tokens
  std::vector<std::int32_t> ids_;
  std::vector<std::uint8_t> mask_;
};

}  // namespace llampi::data
