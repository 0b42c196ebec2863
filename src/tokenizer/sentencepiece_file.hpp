// What a tokenizer.model says besides what the SentencePiece library tells. Private to the library.
#pragma once

#include <string>
#include <string_view>

namespace llampi::tokenizer {

/// Of sentencepiece_model.proto: TrainerSpec and NormalizerSpec.
struct SentencePieceFile {
  bool is_bpe = false;
  bool whitespace_is_suffix = false;
  bool has_character_map = false;  ///< texts are normalized, other than in their white space
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

/// @throws UserError that names `source` if these are no fields of Protocol Buffers
SentencePieceFile read_sentencepiece_file(std::string_view bytes, const std::string& source);

/// The same model without the space before a text. (Where a message of Protocol Buffers holds a field twice,
/// the last counts.)
std::string without_dummy_prefix(std::string_view bytes);

}  // namespace llampi::tokenizer
