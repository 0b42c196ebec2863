// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/json.hpp"

#include <algorithm>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/tokenizer/utf8.hpp"

namespace llampi::tokenizer {

std::unique_ptr<FileTokenizer> parse_tokenizer_json(std::string_view text, const std::string& source) {
  return std::make_unique<JsonTokenizer>(parse_parts(text, source));
}

JsonTokenizer::JsonTokenizer(TokenizerParts parts)
    : names_(std::move(parts.names)),
      bpe_(std::move(parts.model)),
      normalizers_(std::move(parts.normalizers)),
      pre_tokenizers_(std::move(parts.pre_tokenizers)),
      decoders_(std::move(parts.decoders)) {
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  // Where two tokens have the same content after normalization, Hugging Face's library takes a special one.
  std::stable_partition(parts.added.begin(), parts.added.end(),
                        [](const AddedToken& token) { return token.special; });
  Matcher matcher;
  for (auto& token : parts.added) {
    id_of_name_.emplace(token.content, token.id);
    added_by_id_.emplace(token.id, token);
    if (!token.normalized) {
      raw.push_back(std::move(token));
    } else if (!token.content.empty()) {
      token.content = normalize(normalizers_, matcher, token.content);
      normalized.push_back(std::move(token));
    }
  }
  for (std::size_t id = 0; id < names_.size(); ++id)
    if (!names_[id].empty()) id_of_name_.emplace(names_[id], static_cast<std::int32_t>(id));
  // What they stand for in a text, as Hugging Face's library decodes them since 0.23.
  for (const auto& token : normalized) names_[static_cast<std::size_t>(token.id)] = token.content;
  added_ = AddedTokens(std::move(raw));
  added_normalized_ = AddedTokens(std::move(normalized));
  set_begin(parts.begin);
  set_end(parts.end);
}

std::string JsonTokenizer::name() const { return fmt::format("tokenizer.json (BPE, {})", vocabulary()); }

std::vector<std::int32_t> JsonTokenizer::encode(std::string_view text, SpecialText special,
                                                TextStart start) const {
  const auto lease = workspaces_.take();
  std::vector<std::int32_t> ids;
  Encoding encoding{*lease, special == SpecialText::text, ids};
  encode(text, start, encoding);
  return ids;
}

std::vector<std::string> JsonTokenizer::parts(std::string_view text) const {
  const auto lease = workspaces_.take();
  std::vector<std::int32_t> ids;
  std::vector<std::string> parts;
  Encoding encoding{*lease, false, ids, &parts};
  encode(text, TextStart::beginning, encoding);
  return parts;
}

void JsonTokenizer::put_token(std::int32_t id, Encoding& encoding) const {
  if (encoding.parts) return encoding.parts->push_back(name_of(id));
  encoding.ids.push_back(id);
}

void JsonTokenizer::encode(std::string_view text, TextStart start, Encoding& encoding) const {
  std::string storage;
  text = well_formed(text, storage);
  bool is_first = start == TextStart::beginning;
  std::string normalized;
  AddedTokens::Pieces pieces(added_, encoding.workspace.matcher, text, encoding.special_is_text);
  while (const auto piece = pieces.next()) {
    if (piece->token) {
      put_token(piece->token->id, encoding);
    } else if (normalizers_.empty()) {
      encode_normalized(piece->text, is_first, encoding);
    } else {
      normalized = normalize(normalizers_, encoding.workspace.matcher, piece->text);
      encode_normalized(normalized, is_first, encoding);
    }
    is_first = false;
  }
}

void JsonTokenizer::encode_normalized(std::string_view text, bool is_first, Encoding& encoding) const {
  AddedTokens::Pieces pieces(added_normalized_, encoding.workspace.matcher, text, encoding.special_is_text);
  while (const auto piece = pieces.next()) {
    if (piece->token) {
      put_token(piece->token->id, encoding);
    } else {
      encode_piece(piece->text, is_first, 0, encoding);
    }
    is_first = false;
  }
}

/// From pre-tokenizer `step` on; behind the last one pieces are words.
void JsonTokenizer::encode_piece(std::string_view piece, bool is_first, std::size_t step,
                                 Encoding& encoding) const {
  if (step == pre_tokenizers_.size()) {
    if (encoding.parts) return bpe_.append_parts(piece, *encoding.parts);
    bpe_.encode_text(piece, encoding.special_is_text, encoding.workspace.bpe, encoding.ids);
    return;
  }
  const auto& pre_tokenizer = pre_tokenizers_[step];
  if (const auto* split = std::get_if<Split>(&pre_tokenizer)) {
    SplitPieces pieces(*split, encoding.workspace.matcher, piece);
    while (const auto part = pieces.next()) {
      encode_piece(*part, is_first && part->data() == piece.data(), step + 1, encoding);
    }
  } else if (const auto* spaces = std::get_if<ReplaceSpaces>(&pre_tokenizer)) {
    std::string replaced;
    for (const char c : piece) c == ' ' ? void(replaced += spaces->content) : replaced.push_back(c);
    encode_piece(replaced, is_first, step + 1, encoding);
  } else {
    const auto& prefix = std::get<AddPrefix>(pre_tokenizer);
    const bool wanted = !piece.starts_with(prefix.text) && (is_first || !prefix.only_first);
    if (!wanted) return encode_piece(piece, is_first, step + 1, encoding);
    encode_piece(prefix.text + std::string(piece), is_first, step + 1, encoding);
  }
}

const std::string& JsonTokenizer::name_of(std::int32_t id) const {
  if (id < 0 || id >= vocabulary()) {
    throw_user_error("token {} cannot be turned into text: the tokenizer has the ids 0 to {}", id,
                     vocabulary() - 1);
  }
  return names_[static_cast<std::size_t>(id)];
}

std::string JsonTokenizer::decode(std::span<const std::int32_t> ids) const {
  const auto lease = workspaces_.take();
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const auto id : ids) {
    if (const auto& token = name_of(id); !token.empty()) tokens.push_back(token);
  }
  return decode_tokens(decoders_, (*lease).matcher, std::move(tokens));
}

std::string JsonTokenizer::bytes_of(std::int32_t id) const {
  const auto lease = workspaces_.take();
  return decode_token(decoders_, (*lease).matcher, name_of(id));
}

std::optional<std::int32_t> JsonTokenizer::find(std::string_view token) const {
  const auto found = id_of_name_.find(token);
  if (token.empty() || found == id_of_name_.end()) return std::nullopt;
  return found->second;
}

void JsonTokenizer::mark_special(std::int32_t id) {
  bpe_.mark_special(id);
  added_.mark_special(id);
  added_normalized_.mark_special(id);
}

const AddedToken* JsonTokenizer::added_token(std::int32_t id) const {
  const auto found = added_by_id_.find(id);
  return found == added_by_id_.end() ? nullptr : &found->second;
}

void JsonTokenizer::add_token(AddedToken token) {
  if (!added_by_id_.emplace(token.id, token).second) return;
  if (!token.normalized) return added_.add(std::move(token));
  Matcher matcher;
  token.content = normalize(normalizers_, matcher, token.content);
  names_.at(static_cast<std::size_t>(token.id)) = token.content;
  added_normalized_.add(std::move(token));
}

bool JsonTokenizer::has(std::int32_t id) const {
  return id >= 0 && id < vocabulary() && !names_[static_cast<std::size_t>(id)].empty();
}

bool JsonTokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocabulary() && bpe_.model().special[static_cast<std::size_t>(id)];
}

TokenStrips JsonTokenizer::strips(std::int32_t id) const {
  const auto* token = added_token(id);
  return token ? TokenStrips{token->lstrip, token->rstrip} : TokenStrips();
}

bool JsonTokenizer::adds_prefix_space() const {
  const auto is_prefix = [](const auto& step) { return std::holds_alternative<AddPrefix>(step); };
  const auto is_prepend = [](const auto& step) { return std::holds_alternative<Prepend>(step); };
  return std::ranges::any_of(pre_tokenizers_, is_prefix) ||
         (!is_byte_level() && std::ranges::any_of(normalizers_, is_prepend));
}

}  // namespace llampi::tokenizer
