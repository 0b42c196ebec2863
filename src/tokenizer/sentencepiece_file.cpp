#include "tokenizer/sentencepiece_file.hpp"

#include <cstdint>

#include "llampi/core/error.hpp"

namespace llampi::tokenizer {
namespace {

// https://protobuf.dev/programming-guides/encoding: a message is a row of fields, each a key (number << 3 |
// wire type) and a value.
struct Field {
  std::uint64_t number = 0;
  std::uint64_t integer = 0;
  std::string_view bytes;  // a string, or a message within
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
        take(4);
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

  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) refuse();
    const auto taken = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
  const std::string& source_;
};

void read_trainer(std::string_view bytes, const std::string& source, SentencePieceFile& file) {
  FieldReader reader(bytes, source);
  for (Field field; reader.next(field);) {
    if (field.number == 3) file.is_bpe = field.integer == 2;
    if (field.number == 24) file.whitespace_is_suffix = field.integer != 0;
  }
}

void read_normalizer(std::string_view bytes, const std::string& source, SentencePieceFile& file) {
  FieldReader reader(bytes, source);
  for (Field field; reader.next(field);) {
    if (field.number == 2) file.has_character_map = !field.bytes.empty();
    if (field.number == 3) file.add_dummy_prefix = field.integer != 0;
    if (field.number == 4) file.remove_extra_whitespaces = field.integer != 0;
    if (field.number == 5) file.escape_whitespaces = field.integer != 0;
  }
}

}  // namespace

SentencePieceFile read_sentencepiece_file(std::string_view bytes, const std::string& source) {
  SentencePieceFile file;
  bool has_pieces = false;
  FieldReader reader(bytes, source);
  for (Field field; reader.next(field);) {
    if (field.number == 1) has_pieces = true;
    if (field.number == 2) read_trainer(field.bytes, source, file);
    if (field.number == 3) read_normalizer(field.bytes, source, file);
    if (field.number == 5) {
      SentencePieceFile decoding;
      read_normalizer(field.bytes, source, decoding);
      if (decoding.has_character_map) throw_user_error("{}: a denormalizer is not supported", source);
    }
  }
  if (!has_pieces) throw_user_error("{}: this is not a SentencePiece model: it has no pieces", source);
  return file;
}

std::string without_dummy_prefix(std::string_view bytes) {
  // normalizer_spec (3) { add_dummy_prefix (3): false }
  return std::string(bytes).append(std::string_view("\x1A\x02\x18\x00", 4));
}

}  // namespace llampi::tokenizer
