// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/bpe.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/tokenizer/utf8.hpp"

namespace llampi::tokenizer {
namespace {

constexpr std::size_t kShortWord = 48;  // symbols; above, a queue is faster than looking at all pairs
constexpr std::size_t kCachedWords = std::size_t{1} << 16;

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(std::size_t merges)
    : slots_(std::bit_ceil(merges + merges / 2 + 2), Slot{kEmpty, {}}),
      shift_(64 - std::countr_zero(slots_.size())) {}

std::size_t MergeTable::slot_of(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  // Multiplication by 2^64 over the golden ratio spreads neighbouring ids (Knuth 6.4).
  std::size_t at = ((pair ^ pair >> 29) * 0x9E3779B97F4A7C15U) >> shift_;
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void MergeTable::put(std::int32_t left, std::int32_t right, Merge merge) {
  slots_[slot_of(left, right)] = {pair_of(left, right), merge};
}

WordCache::WordCache() : words_(kCachedWords) {}

WordCache::Word& WordCache::place(std::string_view word) {
  return words_[StringHash()(word) & (kCachedWords - 1)];
}

void WordCache::put(Word& place, std::string_view word, const std::int32_t* ids, std::size_t count) {
  if (word.size() > kMaxBytes || count > kMaxIds) return;
  place.bytes = static_cast<std::uint8_t>(word.size());
  place.count = static_cast<std::uint8_t>(count);
  std::memcpy(place.text.data(), word.data(), word.size());
  std::copy_n(ids, count, place.ids.begin());
}

Bpe::Bpe(BpeModel model) : model_(std::move(model)) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids_[static_cast<std::size_t>(byte)] = id_of({&c, 1});
  }
  cut_before_spaces_ = may_cut_before_spaces();
  cut_at_newlines_ = cut_before_spaces_ && may_cut_at_newlines();
  find_joined();
}

void Bpe::mark_special(std::int32_t id, bool special) {
  model_.special[static_cast<std::size_t>(id)] = special;
}

std::int32_t Bpe::id_of(std::string_view entry) const {
  const auto found = model_.vocabulary.find(entry);
  return found == model_.vocabulary.end() ? -1 : found->second;
}

/// Whether no token has a "▁" behind anything else, so that the tokens of a text are those of its words. A
/// character that is left out, because there is no token for what is unknown, would let its neighbours meet.
bool Bpe::may_cut_before_spaces() const {
  if (model_.words_are_bytes || model_.ignore_merges || id_of(kMetaSpace) < 0) return false;
  const auto& bytes = model_.byte_tokens;
  const bool leaves_out =
      !model_.unknown && !(bytes && std::ranges::none_of(*bytes, [](auto id) { return id < 0; }));
  if (leaves_out) return false;
  return std::ranges::none_of(model_.vocabulary, [](const auto& entry) {
    std::string_view text = entry.first;
    while (text.starts_with(kMetaSpace)) text.remove_prefix(kMetaSpace.size());
    return text.find(kMetaSpace) != std::string_view::npos;
  });
}

/// Whether a newline becomes a byte token that is part of no other. Texts without spaces, as Chinese ones,
/// then are not one word each.
bool Bpe::may_cut_at_newlines() const {
  if (!model_.byte_tokens || std::ranges::any_of(*model_.byte_tokens, [](auto id) { return id < 0; }))
    return false;
  constexpr std::string_view kNewlineToken = "<0x0A>";
  return std::ranges::none_of(model_.vocabulary, [&](const auto& entry) {
    const std::string& text = entry.first;
    return text.find('\n') != text.npos || (text.find(kNewlineToken) != text.npos && text != kNewlineToken);
  });
}

/// Spaces and what stands before the next ones, or a newline.
std::size_t Bpe::word_end(std::string_view text, std::size_t at) const {
  if (cut_at_newlines_ && text[at] == '\n') return at + 1;
  while (text.substr(at).starts_with(kMetaSpace)) at += kMetaSpace.size();
  while (at < text.size() && !(cut_at_newlines_ && text[at] == '\n') &&
         !(text[at] == kMetaSpace[0] && text.substr(at).starts_with(kMetaSpace))) {
    ++at;
  }
  return at;
}

std::size_t Bpe::symbol_bytes(char first) const {
  return model_.words_are_bytes ? 1 : character_bytes(first);
}

void Bpe::find_joined() {
  const std::string_view space = model_.words_are_bytes ? " " : kMetaSpace;
  for (const auto& [token, id] : model_.vocabulary) {
    const std::string_view text = token;
    for (std::size_t at = 0, next = 0; at < text.size(); at = next) {
      next = at + symbol_bytes(text[at]);
      if (next >= text.size() || (text[at] != '\n' && !text.substr(next).starts_with(space))) continue;
      joined_.emplace(text.substr(at, next - at + symbol_bytes(text[next])));
    }
  }
}

/// Whether a merge may put these two neighbours into one token. Where they are not the symbols that a word starts as, other
/// symbols stand for them, or none, so that others may meet.
bool Bpe::may_join(std::string_view left, std::string_view right) const {
  const bool is_known = left == "\n" || right == (model_.words_are_bytes ? " " : kMetaSpace);
  return !is_known || model_.ignore_merges || id_of(left) < 0 || id_of(right) < 0 ||
         joined_.contains(std::string(left).append(right));
}

void Bpe::append_parts(std::string_view text, std::vector<std::string>& parts) const {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t word = cut_before_spaces_ ? word_end(text, begin) : text.size();
    std::size_t end = begin;
    while (end < word) {
      const auto left = text.substr(end, symbol_bytes(text[end]));
      end += left.size();
      if (end < word && !may_join(left, text.substr(end, symbol_bytes(text[end])))) break;
    }
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
}

void Bpe::encode_text(std::string_view text, bool special_is_text, Workspace& workspace,
                      std::vector<std::int32_t>& ids) const {
  if (!cut_before_spaces_) return encode(text, special_is_text, workspace, ids);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = word_end(text, begin);
    encode(text.substr(begin, end - begin), special_is_text, workspace, ids);
    begin = end;
  }
}

void Bpe::encode(std::string_view word, bool special_is_text, Workspace& workspace,
                 std::vector<std::int32_t>& ids) const {
  if (word.size() > std::size_t{INT32_MAX})
    throw_user_error("a text of {} bytes is too long for one word", word.size());
  WordCache::Word* place = word.size() <= WordCache::kMaxBytes ? &workspace.cache.place(word) : nullptr;
  const std::size_t before = ids.size();
  if (place && WordCache::holds(*place, word)) {
    ids.insert(ids.end(), place->ids.begin(), place->ids.begin() + place->count);
  } else {
    const std::int32_t whole = model_.ignore_merges ? id_of(word) : -1;
    if (whole >= 0) {
      ids.push_back(whole);
    } else {
      merge_word(word, false, workspace);
      ids.insert(ids.end(), workspace.ids.begin(), workspace.ids.end());
    }
    if (place) WordCache::put(*place, word, ids.data() + before, ids.size() - before);
  }
  if (!special_is_text) return;
  const bool any_special = std::any_of(
      ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(),
      [&](auto id) { return model_.special[static_cast<std::size_t>(id)] && id != model_.unknown; });
  if (any_special) {
    ids.resize(before);
    merge_word(word, true, workspace);
    ids.insert(ids.end(), workspace.ids.begin(), workspace.ids.end());
  }
}

void Bpe::merge_word(std::string_view word, bool no_special, Workspace& workspace) const {
  workspace.ids.clear();
  start(word, workspace.ids);
  if (workspace.ids.size() <= kShortWord) {
    merge_short(no_special, workspace);
  } else {
    merge_long(no_special, workspace);
  }
}

/// The symbols that a word starts as. In the order of Hugging Face's library, in which an unknown character
/// is written when the next known one comes, byte tokens not counted.
void Bpe::start(std::string_view word, std::vector<std::int32_t>& ids) const {
  bool unknown_waits = false;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = model_.words_are_bytes ? 1 : character_bytes(word[at]);
    const std::string_view symbol = word.substr(at, length);
    at += length;
    const std::int32_t id = length == 1 ? byte_ids_[static_cast<unsigned char>(symbol[0])] : id_of(symbol);
    if (id >= 0) {
      if (std::exchange(unknown_waits, false)) ids.push_back(*model_.unknown);
      ids.push_back(id);
      continue;
    }
    if (model_.byte_tokens) {
      const auto token_of = [&](char c) { return (*model_.byte_tokens)[static_cast<unsigned char>(c)]; };
      if (std::ranges::all_of(symbol, [&](char c) { return token_of(c) >= 0; })) {
        for (const char c : symbol) ids.push_back(token_of(c));
        continue;
      }
    }
    if (!model_.unknown) continue;
    if (unknown_waits && !model_.fuse_unknown) ids.push_back(*model_.unknown);
    unknown_waits = true;
  }
  if (unknown_waits) ids.push_back(*model_.unknown);
}

/// Again and again the pair of the lowest rank, of equal ones the leftmost.
void Bpe::merge_short(bool no_special, Workspace& workspace) const {
  constexpr std::uint32_t kNone = UINT32_MAX;
  auto& ids = workspace.ids;
  auto& ranks = workspace.ranks;  // of the pair that starts here
  const auto rank_of = [&](std::size_t at) {
    const auto* merge = at + 1 < ids.size() ? find(ids[at], ids[at + 1], no_special) : nullptr;
    return merge ? *merge : MergeTable::Merge{kNone, 0};
  };
  ranks.clear();
  for (std::size_t i = 0; i < ids.size(); ++i) ranks.push_back(rank_of(i));
  while (!ids.empty()) {
    const auto best = std::ranges::min_element(ranks, {}, &MergeTable::Merge::rank);
    if (best->rank == kNone) return;
    const auto at = static_cast<std::size_t>(best - ranks.begin());
    ids[at] = best->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks[at] = rank_of(at);
    if (at > 0) ranks[at - 1] = rank_of(at - 1);
  }
}

/// The same with a queue, for words of any length. Candidates that were overtaken by others are recognised
/// when they come up.
void Bpe::merge_long(bool no_special, Workspace& workspace) const {
  auto& symbols = workspace.symbols;
  auto& queue = workspace.queue;
  const auto size = static_cast<std::int32_t>(workspace.ids.size());
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto symbol = [&](std::int32_t at) -> Symbol& { return symbols[static_cast<std::size_t>(at)]; };
  const auto offer = [&](std::int32_t left, std::int32_t right) {
    if (left < 0 || right < 0) return;
    if (const auto* merge = find(symbol(left).id, symbol(right).id, no_special)) {
      queue.push_back({merge->rank, left, merge->id});
      std::ranges::push_heap(queue, later);
    }
  };
  symbols.clear();
  queue.clear();
  for (std::int32_t i = 0; i < size; ++i) {
    symbols.push_back({workspace.ids[static_cast<std::size_t>(i)], i - 1, i + 1 < size ? i + 1 : -1, false});
  }
  for (std::int32_t i = 0; i + 1 < size; ++i) offer(i, i + 1);
  while (!queue.empty()) {
    std::ranges::pop_heap(queue, later);
    const Candidate best = queue.back();
    queue.pop_back();
    Symbol& left = symbol(best.at);
    if (left.gone || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    const auto* merge = find(left.id, right.id, no_special);
    if (!merge || merge->id != best.id) continue;
    left.id = best.id;
    right.gone = true;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = best.at;
    offer(left.previous, best.at);
    offer(best.at, left.next);
  }
  workspace.ids.clear();
  for (std::int32_t i = 0; i >= 0; i = symbol(i).next) workspace.ids.push_back(symbol(i).id);
}

}  // namespace llampi::tokenizer
