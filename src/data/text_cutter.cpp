// SPDX-License-Identifier: Apache-2.0
#include "data/text_cutter.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "llampi/core/error.hpp"

namespace llampi::data {
namespace {

// Where words end depends on the few characters around the place.
constexpr std::size_t kContextBytes = 128;
// A tokenizer that agrees to none of so many places agrees to none.
constexpr int kMostTries = 64;

bool is_visible(char c) { return static_cast<unsigned char>(c) > ' '; }

/// A line begins at `place`, or a word with the space before it. There are bytes on both sides.
bool begins_word(std::string_view text, std::size_t place) {
  if (text[place - 1] == '\n') return is_visible(text[place]);
  return is_visible(text[place - 1]) && text[place] == ' ' && is_visible(text[place + 1]);
}

/// How many bytes there are without the last character, which may be cut off, if it has several.
std::size_t until_whole_character(std::string_view text) {
  const auto is_high = [](char c) { return (static_cast<unsigned char>(c) & 0x80U) != 0; };
  const auto is_lead = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0xC0; };
  for (std::size_t place = text.size(); place-- > 1 && is_high(text[place]) && text.size() - place <= 4;) {
    if (is_lead(text[place])) return place;
  }
  return text.size();
}

}  // namespace

TextCutter::TextCutter(const tokenizer::Tokenizer& tokenizer)
    : tokenizer_(tokenizer), line_end_(tokenizer.encode("\n")) {}

// Encoded alone, a later piece would begin like a text, which for some tokenizers means with a space before
// it. Behind a line end it does not.
std::optional<std::vector<std::int32_t>> TextCutter::encode_behind_line_end(std::string_view text) const {
  auto ids = tokenizer_.encode("\n" + std::string(text));
  if (line_end_.size() > ids.size() || !std::equal(line_end_.begin(), line_end_.end(), ids.begin()))
    return {};
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(line_end_.size()));
  return ids;
}

bool TextCutter::may_cut(std::string_view text, std::size_t place) const {
  const auto begin = place - std::min(place, kContextBytes);
  const auto before = text.substr(begin, place - begin);
  const auto behind = text.substr(place, kContextBytes);
  const auto next = encode_behind_line_end(behind);
  if (!next) return false;
  auto ids = tokenizer_.encode(before);
  ids.insert(ids.end(), next->begin(), next->end());
  const auto both = text.substr(begin, before.size() + behind.size());
  return ids == tokenizer_.encode(both) && ends_part(before, behind, both);
}

/// Equal ids around the place do not suffice: how a repetition in a word becomes tokens depends on where it begins, however
/// far that is.
bool TextCutter::ends_part(std::string_view before, std::string_view behind, std::string_view both) const {
  const auto line_end = tokenizer_.parts("\n");
  const auto next = tokenizer_.parts("\n" + std::string(behind));
  if (line_end.size() > next.size() || !std::equal(line_end.begin(), line_end.end(), next.begin()))
    return false;
  auto parts = tokenizer_.parts(before);
  parts.insert(parts.end(), next.begin() + std::ssize(line_end), next.end());
  return parts == tokenizer_.parts(both);
}

std::size_t TextCutter::cut(std::string_view text) const {
  if (tokenizer_.encodes_piecewise()) return until_whole_character(text);
  int tries = 0;
  std::size_t place = text.size() - std::min(text.size(), kContextBytes);
  for (; place > 0 && tries < kMostTries; --place) {
    if (!begins_word(text, place)) continue;
    if (may_cut(text, place)) return place;
    ++tries;
  }
  return 0;
}

std::vector<std::int32_t> TextCutter::encode_next(std::string_view piece) const {
  if (piece.empty() || tokenizer_.encodes_piecewise()) return tokenizer_.encode(piece);
  auto ids = encode_behind_line_end(piece);
  require(ids.has_value(), "a text that was cut where it must not be");
  return *std::move(ids);
}

}  // namespace llampi::data
