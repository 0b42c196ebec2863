// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/tokenizer/utf8.hpp"
#include "tokenizer/unicode_tables.hpp"

namespace llampi::tokenizer {
namespace {

constexpr std::size_t kCharacters = 0x110000;

/// A bit for each character.
class CharacterSet {
 public:
  CharacterSet() : bits_(kCharacters) {}
  void add(char32_t character) { bits_[character] = true; }
  bool has(char32_t character) const { return bits_[character]; }

 private:
  std::vector<bool> bits_;
};

/// Where the first character at or after `at` stands that `is_wanted`; the end if there is none. Asks about none
/// below `first`, which is 0x80 or above.
template <class IsWanted>
std::size_t find_character(std::string_view text, std::size_t at, char32_t first, const IsWanted& is_wanted) {
  while (at < text.size()) {
    if (std::uint64_t eight = 0; at + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & 0x8080808080808080U) == 0) {
        at += 8;
        continue;
      }
    }
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const char32_t character = first_character(text.substr(at));
    if (character >= first && is_wanted(character)) return at;
    at += character_bytes(text[at]);
  }
  return text.size();
}

const CharacterSet& characters_with_stand_ins() {
  static const CharacterSet characters = [] {
    CharacterSet set;
    for (const auto& row : stand_ins()) {
      for (char32_t c = row.first; c <= row.last; ++c) set.add(c);
    }
    return set;
  }();
  return characters;
}

char32_t stand_in_of(char32_t character) {
  const auto rows = stand_ins();
  return (std::ranges::upper_bound(rows, character, {}, &StandIn::first) - 1)->stand_in;
}

using Parts = std::vector<utf8proc_int32_t>;

/// Appends the canonical decomposition.
void decompose(char32_t character, Parts& parts) {
  constexpr std::size_t kMost = 8;  // canonical decompositions have at most 4
  const std::size_t before = parts.size();
  parts.resize(before + kMost);
  int boundary = UTF8PROC_BOUNDCLASS_START;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character), parts.data() + before,
                                             kMost, UTF8PROC_DECOMPOSE, &boundary);
  require(count >= 0 && count <= static_cast<utf8proc_ssize_t>(kMost), "a canonical decomposition");
  parts.resize(before + static_cast<std::size_t>(count));
}

int combining_class(char32_t character) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(character))->combining_class;
}

void compose_parts(Parts& parts) {
  const auto count =
      utf8proc_normalize_utf32(parts.data(), static_cast<utf8proc_ssize_t>(parts.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  require(count >= 0, "a composition");
  parts.resize(static_cast<std::size_t>(count));
}

/// What a normalization must look at.
struct NfcCharacters {
  CharacterSet unknown;          ///< newer than the library's Unicode: nothing joins them
  CharacterSet involved;         ///< may join what stands before it, or is something else when normalized
  char32_t first = kCharacters;  ///< of them
};

const NfcCharacters& nfc_characters() {
  static const NfcCharacters characters = [] {
    constexpr char32_t kEnd = 0x30000;  // no character of Unicode 9 above it is normalized
    NfcCharacters result;
    for (const auto& row : unknown_to_nfc()) {
      for (char32_t c = row.first; c <= row.last; ++c) result.unknown.add(c);
    }
    CharacterSet followers;  // all but the first of a decomposition
    Parts parts;
    const auto surrogate = [](char32_t c) { return c >= 0xD800 && c < 0xE000; };
    for (char32_t c = 0x80; c < kEnd; ++c) {
      if (surrogate(c)) continue;
      parts.clear();
      decompose(c, parts);
      for (std::size_t i = 1; i < parts.size(); ++i) followers.add(static_cast<char32_t>(parts[i]));
    }
    for (char32_t c = 0x80; c < kEnd; ++c) {
      if (surrogate(c) || result.unknown.has(c)) continue;
      parts.clear();
      decompose(c, parts);
      const auto begins = static_cast<char32_t>(parts[0]);
      bool involved = followers.has(c) || followers.has(begins) || combining_class(c) != 0 ||
                      combining_class(begins) != 0;
      if (!involved && (parts.size() > 1 || begins != c)) {
        compose_parts(parts);
        involved = parts.size() != 1 || static_cast<char32_t>(parts[0]) != c;
      }
      if (!involved) continue;
      result.involved.add(c);
      result.first = std::min(result.first, c);
    }
    return result;
  }();
  return characters;
}

/// In canonical order: marks by their class, of the same class as they stood.
void order_marks(Parts& parts) {
  const auto mark_class = [](utf8proc_int32_t c) { return combining_class(static_cast<char32_t>(c)); };
  for (auto at = parts.begin(); at != parts.end();) {
    if (mark_class(*at) == 0) {
      ++at;
      continue;
    }
    const auto end = std::find_if(at, parts.end(), [&](auto c) { return mark_class(c) == 0; });
    std::stable_sort(at, end, [&](auto a, auto b) { return mark_class(a) < mark_class(b); });
    at = end;
  }
}

}  // namespace

std::string_view for_matching(std::string_view text, std::string& storage) {
  const auto& characters = characters_with_stand_ins();
  const char32_t first = stand_ins().front().first;
  const auto next = [&](std::size_t from) {
    return find_character(text, from, first, [&](char32_t c) { return characters.has(c); });
  };
  std::size_t at = next(0);
  if (at == text.size()) return text;
  storage = text;
  std::string other;
  for (; at < text.size(); at = next(at + other.size())) {
    other.clear();
    append_character(other, stand_in_of(first_character(text.substr(at))));
    storage.replace(at, other.size(), other);
  }
  return storage;
}

std::string_view compose(std::string_view text, std::string& storage) {
  const auto& characters = nfc_characters();
  const auto is_involved = [&](char32_t c) { return characters.involved.has(c); };
  std::size_t at = find_character(text, 0, characters.first, is_involved);
  if (at == text.size()) return text;
  storage.clear();
  storage.reserve(text.size());
  Parts parts;
  for (std::size_t copied = 0;;) {
    // What is normalized: the character before, which may be joined, and all that may join it.
    std::size_t begin = at;
    if (at > copied) {
      const std::size_t before = last_character(text.substr(0, at));
      if (!characters.unknown.has(first_character(text.substr(before)))) begin = before;
    }
    std::size_t end = at;
    while (end < text.size() && is_involved(first_character(text.substr(end))))
      end += character_bytes(text[end]);
    storage.append(text.substr(copied, begin - copied));
    parts.clear();
    for (std::size_t i = begin; i < end; i += character_bytes(text[i]))
      decompose(first_character(text.substr(i)), parts);
    order_marks(parts);
    compose_parts(parts);
    for (const auto part : parts) append_character(storage, static_cast<char32_t>(part));
    copied = end;
    at = find_character(text, end, characters.first, is_involved);
    if (at == text.size()) {
      storage.append(text.substr(copied));
      return storage;
    }
  }
}

}  // namespace llampi::tokenizer
