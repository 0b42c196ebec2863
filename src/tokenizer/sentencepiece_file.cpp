// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/sentencepiece_file.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "llampi/core/error.hpp"
#include "tokenizer/fields.hpp"
#include "tokenizer/steps.hpp"

namespace llampi::tokenizer {
namespace {

using Kind = SentencePieceFile::Kind;

// https://protobuf.dev/programming-guides/encoding: a message is a row of fields, each a key (number << 3 |
// wire type) and a value.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t integer = 0;  // also the bits of a float
  std::string_view bytes;     // a string, or a message within
};

class FieldReader {
 public:
  FieldReader(std::string_view rest, const std::string& source) : rest_(rest), source_(source) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    const std::uint64_t key = integer();
    field = {};
    field.number = key >> 3;
    switch (key & 7) {
      case 0:
        field.integer = integer();
        return true;
      case 1:
        take(8);
        return true;
      case 2:
        field.bytes = take(integer());
        return true;
      case 5:
        field.integer = little_endian(take(4));
        return true;
      default:
        refuse();
    }
  }

 private:
  [[noreturn]] void refuse() const {
    throw_user_error("{}: this is not a SentencePiece model: it is damaged, cut off or another kind of file",
                     source_);
  }

  std::uint64_t integer() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    refuse();
  }

  static std::uint32_t little_endian(std::string_view bytes) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i)
      value |= std::uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    return value;
  }

  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) refuse();
    const auto taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
  const std::string& source_;
};

/// What decides whether a model is supported.
struct Settings {
  bool is_bpe = false;
  bool has_character_map = false;  // texts are normalized, other than in their white space
  bool has_denormalizer = false;
  bool whitespace_is_suffix = false;
  bool escape_whitespaces = true;
};

void read_piece(std::string_view bytes, const std::string& source, SentencePieceFile& file) {
  SentencePieceFile::Piece piece;
  FieldReader reader(bytes, source);
  for (Field field; reader.next(field);) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<std::uint32_t>(field.integer));
    if (field.number == 3) {
      if (field.integer < 1 || field.integer > 6) {
        throw_user_error("{}: the piece {} has the type {}, which is not known", source,
                         in_quotes(piece.text), field.integer);
      }
      piece.kind = static_cast<Kind>(field.integer);
    }
  }
  file.pieces.push_back(std::move(piece));
}

void read_trainer(std::string_view bytes, const std::string& source, SentencePieceFile& file,
                  Settings& settings) {
  FieldReader reader(bytes, source);
  for (Field field; reader.next(field);) {
    if (field.number == 3) settings.is_bpe = field.integer == 2;
    if (field.number == 24) settings.whitespace_is_suffix = field.integer != 0;
    if (field.number == 35) file.byte_fallback = field.integer != 0;
    if (field.number == 46) file.begin = field.bytes;
    if (field.number == 47) file.end = field.bytes;
  }
}

void read_normalizer(std::string_view bytes, const std::string& source, SentencePieceFile& file,
                     Settings& settings) {
  FieldReader reader(bytes, source);
  for (Field field; reader.next(field);) {
    if (field.number == 2) settings.has_character_map = !field.bytes.empty();
    if (field.number == 3) file.add_dummy_prefix = field.integer != 0;
    if (field.number == 4) file.remove_extra_whitespaces = field.integer != 0;
    if (field.number == 5) settings.escape_whitespaces = field.integer != 0;
  }
}

void read_denormalizer(std::string_view bytes, const std::string& source, Settings& settings) {
  FieldReader reader(bytes, source);
  for (Field field; reader.next(field);) {
    if (field.number == 2 && !field.bytes.empty()) settings.has_denormalizer = true;
  }
}

void check_support(const Settings& settings, const std::string& source) {
  if (!settings.is_bpe) throw_user_error("{}: only BPE models are supported, as Llama 2's is", source);
  if (settings.has_character_map) {
    throw_user_error(
        "{}: the model normalizes texts (its normalization rule is not \"identity\"), which is not supported",
        source);
  }
  if (settings.has_denormalizer) throw_user_error("{}: a denormalizer is not supported", source);
  if (settings.whitespace_is_suffix || !settings.escape_whitespaces) {
    throw_user_error("{}: treat_whitespace_as_suffix and escape_whitespaces=false are not supported", source);
  }
}

void check_pieces(const SentencePieceFile& file, const std::string& source) {
  std::unordered_set<std::string_view> seen;
  for (const auto& piece : file.pieces) {
    if (piece.text.empty()) throw_user_error("{}: piece {} is empty", source, seen.size());
    if (!seen.insert(piece.text).second)
      throw_user_error("{}: the piece {} is already defined", source, in_quotes(piece.text));
    if (std::isnan(piece.score))
      throw_user_error("{}: the score of the piece {} is not a number", source, in_quotes(piece.text));
    if (piece.kind == Kind::byte && !fallback_byte(piece.text))
      throw_user_error("{}: the byte piece {} names no byte", source, in_quotes(piece.text));
  }
  const auto count = [&](Kind kind) {
    return std::ranges::count(file.pieces, kind, &SentencePieceFile::Piece::kind);
  };
  if (count(Kind::unknown) != 1)
    throw_user_error("{}: {} pieces stand for what is unknown; one must", source, count(Kind::unknown));
  if (count(Kind::byte) != (file.byte_fallback ? 256 : 0)) {
    throw_user_error("{}: there are {} byte pieces, although byte_fallback is {}", source, count(Kind::byte),
                     file.byte_fallback);
  }
}

}  // namespace

SentencePieceFile read_sentencepiece_file(std::string_view bytes, const std::string& source) {
  SentencePieceFile file;
  Settings settings;
  FieldReader reader(bytes, source);
  for (Field field; reader.next(field);) {
    if (field.number == 1) read_piece(field.bytes, source, file);
    if (field.number == 2) read_trainer(field.bytes, source, file, settings);
    if (field.number == 3) read_normalizer(field.bytes, source, file, settings);
    if (field.number == 5) read_denormalizer(field.bytes, source, settings);
  }
  if (file.pieces.empty())
    throw_user_error("{}: this is not a SentencePiece model: it has no pieces", source);
  check_support(settings, source);
  check_pieces(file, source);
  return file;
}

}  // namespace llampi::tokenizer
