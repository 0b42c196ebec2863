// SPDX-License-Identifier: Apache-2.0
#include "data/text_cutter.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

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

/// What `read`, encode() or parts() of a tokenizer, makes of `text` after a line end; nothing if a line end changes something in it.
/// Read alone, a later piece would begin like a text, which for some tokenizers means with a space before it.
template <class Read>
auto read_after_line_end(const Read& read, std::string_view text) -> std::optional<decltype(read(text))> {
  auto all = read("\n" + std::string(text));
  const auto line_end = read("\n");
  if (line_end.size() > all.size() || !std::equal(line_end.begin(), line_end.end(), all.begin())) return {};
  all.erase(all.begin(), all.begin() + std::ssize(line_end));
  return all;
}

/// Whether `read` makes of two texts in a row what it makes of `both` together.
template <class Read>
bool may_be_read_apart(const Read& read, std::string_view before, std::string_view behind,
                       std::string_view both) {
  const auto next = read_after_line_end(read, behind);
  if (!next) return false;
  auto apart = read(before);
  apart.insert(apart.end(), next->begin(), next->end());
  return apart == read(both);
}

auto encoder(const tokenizer::Tokenizer& tokenizer) {
  return [&tokenizer](std::string_view text) { return tokenizer.encode(text); };
}

}  // namespace

bool TextCutter::may_cut(std::string_view text, std::size_t place) const {
  const auto begin = place - std::min(place, kContextBytes);
  const auto before = text.substr(begin, place - begin);
  const auto behind = text.substr(place, kContextBytes);
  const auto both = text.substr(begin, before.size() + behind.size());
  // Equal ids around the place do not suffice: how a repetition in a word becomes tokens depends on where it begins, however
  // far that is.
  const auto parts = [this](std::string_view some) { return tokenizer_.parts(some); };
  return may_be_read_apart(encoder(tokenizer_), before, behind, both) &&
         may_be_read_apart(parts, before, behind, both);
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
  auto ids = read_after_line_end(encoder(tokenizer_), piece);
  require(ids.has_value(), "a text that was cut where it must not be");
  return *std::move(ids);
}

}  // namespace llampi::data
