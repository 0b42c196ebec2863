// SPDX-License-Identifier: Apache-2.0
// The steps of tokenizer.json around the model: normalizers, pre-tokenizers and decoders. Named and defined
// as in Hugging Face's library. Private to the library.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/regex.hpp"

namespace llampi::tokenizer {

/// Byte-level tokens are written with a printable character for each byte: printable Latin-1 stands for
/// itself, the others for U+0100 and following.
class ByteCharacters {
 public:
  ByteCharacters();
  /// The bytes that `text` writes; nothing if one of its characters is none of these.
  std::optional<std::string> bytes(std::string_view text) const;

 private:
  static constexpr std::size_t kCharacters = 0x144;
  std::array<std::int16_t, kCharacters> byte_of_;  // by code point; -1: none
};

/// Normalizer Replace, decoder Replace.
struct Replace {
  Regex pattern;
  std::string content;
};
/// Normalizer Prepend.
struct Prepend {
  std::string text;
};
/// Normalizer NFC.
struct Compose {};
using Normalizer = std::variant<Replace, Prepend, Compose>;

/// All of them, one after the other, on a text that is not empty.
/// @throws UserError if the text grows without measure; so do those that decode
std::string normalize(const std::vector<Normalizer>& steps, Matcher& matcher, std::string_view text);

/// Pre-tokenizer Split, and those that are cases of it.
struct Split {
  enum class Behavior : std::uint8_t {
    removed,
    isolated,
    merged_with_previous,
    merged_with_next,
    contiguous
  };
  Regex pattern;
  Behavior behavior;
  bool invert = false;  ///< what stands between the matches counts as match
};
/// Metaspace: each space becomes `content`.
struct ReplaceSpaces {
  std::string content;
};
/// ByteLevel's add_prefix_space, and Metaspace's.
struct AddPrefix {
  std::string text;
  bool only_first;  ///< only to a piece with which the text starts
};
using PreTokenizer = std::variant<Split, ReplaceSpaces, AddPrefix>;

/// Goes through the pieces into which one Split cuts a text, in order.
class SplitPieces {
 public:
  SplitPieces(const Split& split, Matcher& matcher, std::string_view text)
      : split_(split), matches_(split.pattern, matcher, text), text_(text) {}
  std::optional<std::string_view> next();

 private:
  struct Part {
    Span span;
    bool match;
  };
  std::optional<Part> part();
  bool continues(bool match) const;
  const Split& split_;
  Matches matches_;
  std::string_view text_;
  std::size_t at_ = 0;         // parts up to here were given
  std::optional<Span> found_;  // a match that waits for the part before it
  std::optional<Span> piece_;  // may still grow
  bool last_match_ = false;
};

struct DecodeByteLevel {};
struct DecodeByteFallback {};
struct DecodeFuse {};
struct DecodeStrip {
  char32_t content;
  std::size_t start;
  std::size_t stop;
};
struct DecodeMetaspace {
  char32_t replacement;
  bool drops_first;
};
using Decoder =
    std::variant<Replace, DecodeByteLevel, DecodeByteFallback, DecodeFuse, DecodeStrip, DecodeMetaspace>;

/// The text of tokens given by name.
std::string decode_tokens(const std::vector<Decoder>& steps, Matcher& matcher,
                          std::vector<std::string> tokens);
/// The bytes of one token, which may be a part of a character.
std::string decode_token(const std::vector<Decoder>& steps, Matcher& matcher, std::string token);

/// The byte of a token "<0x0A>".
std::optional<char> fallback_byte(std::string_view token);

}  // namespace llampi::tokenizer
