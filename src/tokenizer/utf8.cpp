// SPDX-License-Identifier: Apache-2.0
#include "llampi/tokenizer/utf8.hpp"

#include <cstdint>
#include <cstring>

namespace llampi::tokenizer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

unsigned char byte_at(std::string_view text, std::size_t at) { return static_cast<unsigned char>(text[at]); }

/// Bytes of the run of ASCII at `at`.
std::size_t ascii_bytes(std::string_view text, std::size_t at) {
  const std::size_t begin = at;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, text.data() + at, 8);
    if (eight & 0x8080808080808080U) break;
  }
  while (at < text.size() && byte_at(text, at) < 0x80) ++at;
  return at - begin;
}

struct Sequence {
  std::size_t bytes;  // of the character, or of the part that U+FFFD stands for
  bool good;
};

/// The sequence that starts with the byte at `at`, which is not ASCII (Unicode 3.9, table 3-7).
Sequence sequence_at(std::string_view text, std::size_t at) {
  const unsigned char lead = byte_at(text, at);
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const std::size_t length = character_bytes(text[at]);
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) low = 0xA0;   // overlong
  if (lead == 0xED) high = 0x9F;  // surrogates
  if (lead == 0xF0) low = 0x90;   // overlong
  if (lead == 0xF4) high = 0x8F;  // above U+10FFFF
  for (std::size_t i = 1; i < length; ++i, low = 0x80, high = 0xBF) {
    if (at + i >= text.size() || byte_at(text, at + i) < low || byte_at(text, at + i) > high) {
      return {i, false};
    }
  }
  return {length, true};
}

/// Where the first ill-formed sequence starts; the end if there is none.
std::size_t first_error(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    at += ascii_bytes(text, at);
    if (at == text.size()) break;
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.good) return at;
    at += sequence.bytes;
  }
  return text.size();
}

}  // namespace

bool is_well_formed(std::string_view text) { return first_error(text) == text.size(); }

std::string_view well_formed(std::string_view text, std::string& storage) {
  std::size_t at = first_error(text);
  if (at == text.size()) return text;
  storage.clear();
  storage.reserve(text.size() + text.size() / 8);
  for (;;) {
    storage.append(text.substr(0, at));
    text.remove_prefix(at);
    if (text.empty()) return storage;
    storage.append(kReplacement);
    text.remove_prefix(sequence_at(text, 0).bytes);
    at = first_error(text);
  }
}

char32_t first_character(std::string_view text) {
  const std::size_t length = character_bytes(text[0]);
  if (length == 1) return byte_at(text, 0);
  char32_t character = byte_at(text, 0) & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) character = character << 6 | (byte_at(text, i) & 0x3FU);
  return character;
}

std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (byte_at(text, at) & 0xC0U) == 0x80) --at;
  return at;
}

void append_character(std::string& text, char32_t character) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (character < 0x80) {
    put(character);
  } else if (character < 0x800) {
    put(0xC0 | character >> 6);
    put(0x80 | (character & 0x3F));
  } else if (character < 0x10000) {
    put(0xE0 | character >> 12);
    put(0x80 | (character >> 6 & 0x3F));
    put(0x80 | (character & 0x3F));
  } else {
    put(0xF0 | character >> 18);
    put(0x80 | (character >> 12 & 0x3F));
    put(0x80 | (character >> 6 & 0x3F));
    put(0x80 | (character & 0x3F));
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::size_t leading_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && is_white_space(first_character(text.substr(at))))
    at += character_bytes(text[at]);
  return at;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t at = last_character(text.substr(0, end));
    if (!is_white_space(first_character(text.substr(at)))) break;
    end = at;
  }
  return text.size() - end;
}

}  // namespace llampi::tokenizer
