// SPDX-License-Identifier: Apache-2.0
// From a piece of an input file to token ids. Private to the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/piece_reader.hpp"
#include "data/text_cutter.hpp"
#include "llampi/data/tokenize_options.hpp"

namespace llampi::data {

struct EncodedPiece {
  struct Document {
    std::size_t end;   ///< in ids
    bool kept = true;  ///< otherwise it has no ids, only its number in the inputs
  };
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;    ///< of conversations
  std::vector<Document> documents;   ///< what follows the last goes on in the next piece
  std::int64_t text_bytes = 0;       ///< of the documents
  std::int64_t input_bytes = 0;      ///< of the piece
  std::int64_t file_bytes = 0;       ///< likewise, as Piece has it
  std::int64_t dropped = 0;          ///< conversations that were too long
  std::vector<std::string> defects;  ///< "file:line: what is wrong", of lines that were skipped
  std::int64_t empty = 0;            ///< files, lines and texts that are left out as they are blank
  std::string first_empty;           ///< "file" or "file:line"
  std::int64_t ill_formed = 0;       ///< places in a text that are not UTF-8
  bool json_in_pipe = false;         ///< a pipe, taken as text, begins with JSON
  std::string file;                  ///< its name
};

/// May be used by several threads.
class PieceEncoder {
 public:
  /// Both must outlive it.
  PieceEncoder(const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options);

  /// PieceReader::Cut.
  std::size_t cut(std::string_view text, bool first) const;
  /// @throws UserError for the first line that cannot be used, unless they are to be skipped
  EncodedPiece operator()(const Piece& piece) const;

 private:
  /// Of what was not looked at before it was read, a pipe for example.
  void check_head(EncodedPiece& out, const Piece& piece) const;
  void add_text(EncodedPiece& out, const Piece& piece) const;
  std::string_view without_mark(const Piece& piece) const;
  void add_line(EncodedPiece& out, std::string_view line, const std::string& place) const;
  void leave_out(EncodedPiece& out, const std::string& place) const;
  /// One document; returns the bytes of its text. No ids: it is blank.
  std::int64_t encode_line(std::string_view line, tokenizer::EncodedChat& document) const;
  void add_ids(EncodedPiece& out, const std::vector<std::int32_t>& ids) const;

  const tokenizer::Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const TextCutter cutter_;
  std::vector<std::int32_t> begin_, end_;  // of a document
};

}  // namespace llampi::data
