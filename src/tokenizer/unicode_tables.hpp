// SPDX-License-Identifier: Apache-2.0
// What Hugging Face's library takes characters for where that depends on the version of Unicode. Private to the library.
#pragma once

#include <span>

namespace llampi::tokenizer {

/// Characters that the library's regular expressions (Unicode 16) take for something else than those of another
/// version, and a character of as many bytes that all versions take for the same.
struct StandIn {
  char32_t first;
  char32_t last;
  char32_t stand_in;
};
struct CharacterRange {
  char32_t first;
  char32_t last;
};

/// In order; for PCRE2 with Unicode 14 to 18.
std::span<const StandIn> stand_ins();
/// In order: characters that normalization knows since Unicode 10, but not the library's, which has Unicode 9.
std::span<const CharacterRange> unknown_to_nfc();
/// Members of a class: numbers that Unicode 14 does not have, but the library's Digits (Unicode 17).
const char* digits_since_14();

}  // namespace llampi::tokenizer
