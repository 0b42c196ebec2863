// SPDX-License-Identifier: Apache-2.0
// UTF-8, as the tokenizers see it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace llampi::tokenizer {

/// `text` itself if it is UTF-8. Otherwise a copy in `storage`, in which each maximal part of an ill-formed
/// sequence is U+FFFD (Unicode 3.9, table 3-8), as Python's decode("utf-8", "replace") and Rust's
/// from_utf8_lossy have it.
std::string_view well_formed(std::string_view text, std::string& storage);

bool is_well_formed(std::string_view text);

/// Bytes of the character that starts with `lead`; the text must be UTF-8.
constexpr std::size_t character_bytes(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  if (byte < 0x80) return 1;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

/// The first character of a text that is UTF-8 and not empty.
char32_t first_character(std::string_view text);
/// Where the last character of such a text starts.
std::size_t last_character(std::string_view text);

void append_character(std::string& text, char32_t character);

/// Unicode's White_Space, a property that no version has changed since 6.3.
bool is_white_space(char32_t character);
/// Bytes of white space at the beginning or the end of a text that is UTF-8.
std::size_t leading_space(std::string_view text);
std::size_t trailing_space(std::string_view text);

}  // namespace llampi::tokenizer
