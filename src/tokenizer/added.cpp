// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/added.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "llampi/tokenizer/utf8.hpp"

namespace llampi::tokenizer {
AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::ranges::stable_sort(tokens_, {}, &AddedToken::content);
  const auto same = [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (const auto& token : tokens_) {
    starts_[static_cast<unsigned char>(token.content[0])] = true;
    // A word's characters as the regular expressions of Hugging Face's library for this have them (Unicode's
    // UTS 18).
    if (token.single_word && !word_)
      word_.emplace("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]", "added tokens");
  }
  if (std::ranges::count(starts_, true) == 1) only_start_ = tokens_[0].content[0];
}

void AddedTokens::mark_special(std::int32_t id) {
  for (auto& token : tokens_) token.special = token.special || token.id == id;
}

void AddedTokens::add(AddedToken token) {
  auto tokens = std::move(tokens_);
  tokens.push_back(std::move(token));
  *this = AddedTokens(std::move(tokens));
}

std::size_t AddedTokens::next_candidate(std::string_view text, std::size_t at) const {
  if (tokens_.empty()) return text.size();
  if (only_start_) {
    const void* found =
        at < text.size() ? std::memchr(text.data() + at, *only_start_, text.size() - at) : nullptr;
    return found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : text.size();
  }
  while (at < text.size() && !starts_[static_cast<unsigned char>(text[at])]) ++at;
  return at;
}

/// The tokens are sorted: those that share their first `depth` bytes with the text are a range that narrows.
const AddedToken* AddedTokens::match_at(std::string_view text, std::size_t at) const {
  const AddedToken* longest = nullptr;
  auto first = tokens_.begin();
  auto last = tokens_.end();
  for (std::size_t depth = 0; first != last; ++depth) {
    if (first->content.size() == depth) {
      longest = &*first;
      if (++first == last) break;
    }
    if (at + depth >= text.size()) break;
    const auto byte = static_cast<unsigned char>(text[at + depth]);
    const auto byte_of = [depth](const AddedToken& t) {
      return static_cast<unsigned char>(t.content[depth]);
    };
    first = std::ranges::lower_bound(first, last, byte, {}, byte_of);
    last = std::ranges::upper_bound(first, last, byte, {}, byte_of);
  }
  return longest;
}

bool AddedTokens::is_single_word(Matcher& matcher, std::string_view text, Span span) const {
  const auto is_word = [&](std::size_t at) {
    return Matches(*word_, matcher, text.substr(at, character_bytes(text[at]))).next().has_value();
  };
  return (span.begin == 0 || !is_word(last_character(text.substr(0, span.begin)))) &&
         (span.end == text.size() || !is_word(span.end));
}

std::optional<AddedTokens::Pieces::Found> AddedTokens::Pieces::find() {
  for (;;) {
    const std::size_t at = tokens_.next_candidate(text_, searched_);
    if (at == text_.size()) return std::nullopt;
    const AddedToken* token = tokens_.match_at(text_, at);
    searched_ = at + (token ? token->content.size() : 1);
    if (!token) continue;
    // What is passed over here is passed over as a whole: no other token is looked for within it.
    if (special_is_text_ && token->special) continue;
    Span span{at, searched_};
    if (token->single_word && !tokens_.is_single_word(matcher_, text_, span)) continue;
    if (token->lstrip) span.begin = std::max(at - trailing_space(text_.substr(0, at)), emitted_);
    if (token->rstrip) span.end += leading_space(text_.substr(span.end));
    if (span.begin >= span.end) continue;  // white space that the token before has taken along
    return Found{token, span};
  }
}

std::optional<AddedTokens::Piece> AddedTokens::Pieces::next() {
  if (!found_) found_ = find();
  const std::size_t begin = emitted_;
  if (!found_) {
    emitted_ = text_.size();
    if (begin >= text_.size()) return std::nullopt;
    return Piece{text_.substr(begin), nullptr};
  }
  if (begin < found_->span.begin) {
    emitted_ = found_->span.begin;
    return Piece{text_.substr(begin, emitted_ - begin), nullptr};
  }
  const Found token = *std::exchange(found_, std::nullopt);
  emitted_ = token.span.end;
  return Piece{text_.substr(token.span.begin, token.span.end - token.span.begin), token.token};
}

}  // namespace llampi::tokenizer
