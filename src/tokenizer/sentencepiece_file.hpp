// SPDX-License-Identifier: Apache-2.0
// The contents of a tokenizer.model. Private to the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llampi::tokenizer {

/// What sentencepiece_model.proto's ModelProto says, as far as texts and ids depend on it.
struct SentencePieceFile {
  enum class Kind : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;  ///< "▁" stands for a space
    float score = 0;   ///< the highest first
    Kind kind = Kind::normal;
  };
  std::vector<Piece> pieces;  ///< by id
  std::string begin = "<s>";
  std::string end = "</s>";
  bool byte_fallback = false;  ///< there are all 256 byte pieces
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
};

/// Pieces are there once each and not empty, scores are numbers, exactly one piece is for what is unknown.
/// @throws UserError that names `source` for what is no such file, and for what is not supported
SentencePieceFile read_sentencepiece_file(std::string_view bytes, const std::string& source);

}  // namespace llampi::tokenizer
