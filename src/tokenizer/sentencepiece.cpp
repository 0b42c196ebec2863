// SPDX-License-Identifier: Apache-2.0
// tokenizer.model, a BPE model of SentencePiece. Its pieces and scores say the same as merges and ranks: two
// neighbours are merged where they make a piece, the piece of the highest score first, of equal ones the
// leftmost. Texts are cut at control symbols first, and each part between them is a text of its own: what
// LlamaTokenizer of transformers 4 does with legacy=True, as Llama 2 was trained.
#include <algorithm>
#include <functional>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/tokenizer/utf8.hpp"
#include "tokenizer/added.hpp"
#include "tokenizer/bpe.hpp"
#include "tokenizer/chat_tokens.hpp"
#include "tokenizer/fields.hpp"
#include "tokenizer/files.hpp"
#include "tokenizer/sentencepiece_file.hpp"
#include "tokenizer/steps.hpp"

namespace llampi::tokenizer {
namespace {

using Kind = SentencePieceFile::Kind;

constexpr std::size_t kMaxPieceBytes = 2048;  // each is looked at in all its halves

/// A piece that text can be merged to.
bool is_merged(const SentencePieceFile::Piece& piece) {
  return (piece.kind == Kind::normal || piece.kind == Kind::unused) && is_well_formed(piece.text);
}

class ModelBuilder {
 public:
  ModelBuilder(const SentencePieceFile& file, const std::string& source) : file_(file), source_(source) {
    for (const auto& piece : file.pieces) ranks_.push_back(piece.score);
    std::ranges::sort(ranks_, std::greater<>());
    ranks_.erase(std::unique(ranks_.begin(), ranks_.end()), ranks_.end());
  }

  /// Ids from the number of pieces on are characters that are part of a piece without being one.
  BpeModel build() {
    for (std::size_t id = 0; id < file_.pieces.size(); ++id) {
      const auto& piece = file_.pieces[id];
      if (is_merged(piece)) model_.vocabulary.emplace(piece.text, id);
      if (piece.kind == Kind::unknown) model_.unknown = static_cast<std::int32_t>(id);
    }
    for (const auto& piece : file_.pieces) {
      if (is_merged(piece)) add_characters(piece.text);
    }
    model_.fuse_unknown = true;
    if (file_.byte_fallback) add_bytes();
    add_merges();
    model_.special.resize(next_);
    for (std::size_t id = 0; id < file_.pieces.size(); ++id) {
      const auto kind = file_.pieces[id].kind;
      model_.special[id] = kind == Kind::control || kind == Kind::unknown;
    }
    return std::move(model_);
  }

 private:
  void add_characters(std::string_view text) {
    if (text.size() > kMaxPieceBytes) {
      throw_user_error("{}: the piece {} has {} bytes; at most {} are supported", source_, in_quotes(text),
                       text.size(), kMaxPieceBytes);
    }
    for (std::size_t at = 0; at < text.size(); at += character_bytes(text[at])) {
      const auto character = text.substr(at, character_bytes(text[at]));
      if (!model_.vocabulary.contains(character)) model_.vocabulary.emplace(character, next_++);
    }
  }

  void add_bytes() {
    auto& ids = model_.byte_tokens.emplace();
    for (std::size_t id = 0; id < file_.pieces.size(); ++id) {
      const auto& piece = file_.pieces[id];
      if (piece.kind != Kind::byte) continue;
      ids[static_cast<unsigned char>(*fallback_byte(piece.text))] = static_cast<std::int32_t>(id);
    }
  }

  void add_merges() {
    struct Entry {
      std::int32_t left, right;
      MergeTable::Merge merge;
    };
    std::vector<Entry> entries;
    for (std::size_t id = 0; id < file_.pieces.size(); ++id) {
      const auto& piece = file_.pieces[id];
      if (!is_merged(piece)) continue;
      const std::string_view text = piece.text;
      const auto rank = std::ranges::lower_bound(ranks_, piece.score, std::greater<>()) - ranks_.begin();
      for (std::size_t at = character_bytes(text[0]); at < text.size(); at += character_bytes(text[at])) {
        const auto left = model_.vocabulary.find(text.substr(0, at));
        const auto right = model_.vocabulary.find(text.substr(at));
        if (left == model_.vocabulary.end() || right == model_.vocabulary.end()) continue;
        entries.push_back(
            {left->second, right->second, {static_cast<std::uint32_t>(rank), static_cast<std::int32_t>(id)}});
      }
    }
    model_.merges = MergeTable(entries.size());
    for (const auto& entry : entries) model_.merges.put(entry.left, entry.right, entry.merge);
  }

  const SentencePieceFile& file_;
  const std::string& source_;
  std::vector<float> ranks_;  // the different scores, the highest first
  BpeModel model_;
  std::size_t next_ = file_.pieces.size();
};

class SentencePieceTokenizer : public FileTokenizer {
 public:
  SentencePieceTokenizer(SentencePieceFile file, const std::string& source)
      : file_(std::move(file)), bpe_(ModelBuilder(file_, source).build()) {
    for (std::size_t id = 0; id < file_.pieces.size(); ++id) ids_.emplace(file_.pieces[id].text, id);
    make_added();
    make_replacements();
    const auto control = [&](const std::string& name) -> std::optional<std::int32_t> {
      const auto id = find(name);
      return id && piece(*id).kind == Kind::control ? id : std::nullopt;
    };
    set_begin(control(file_.begin));
    set_end(control(file_.end));
  }

  std::string name() const override {
    return fmt::format("tokenizer.model (SentencePiece BPE, {})", vocabulary());
  }
  std::int64_t vocabulary() const override { return std::ssize(file_.pieces); }
  bool begins_by_default() const override { return true; }
  bool adds_prefix_space() const override { return file_.add_dummy_prefix; }

  std::vector<std::int32_t> encode(std::string_view text, SpecialText special, TextStart) const override {
    const auto lease = workspaces_.take();
    const bool special_is_text = special == SpecialText::text;
    std::vector<std::int32_t> ids;
    walk(
        text, special_is_text, (*lease).matcher, [&](const AddedToken& token) { ids.push_back(token.id); },
        [&](std::string_view between) { encode_between(between, special_is_text, *lease, ids); });
    return ids;
  }

  std::vector<std::string> parts(std::string_view text) const override {
    const auto lease = workspaces_.take();
    std::vector<std::string> parts;
    walk(
        text, false, (*lease).matcher, [&](const AddedToken& token) { parts.push_back(token.content); },
        [&](std::string_view between) { bpe_.append_parts(between, parts); });
    return parts;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::string bytes;  // of byte pieces, which follow each other
    // The space before a text is dropped, spaces behind a special token but for one.
    const bool drops_spaces = file_.add_dummy_prefix || file_.remove_extra_whitespaces;
    bool drops_next = drops_spaces;
    bool behind_special = false;
    for (const auto id : ids) {
      const auto& next = checked_piece(id);
      if (is_special(id)) {
        append_characters(text, std::exchange(bytes, {}));
        text += next.text;
        drops_next = drops_spaces;
        behind_special = true;
        continue;
      }
      const bool keeps_one = std::exchange(behind_special, false);
      if (next.kind == Kind::byte) {
        bytes.push_back(*fallback_byte(next.text));
        drops_next = false;
        continue;
      }
      append_characters(text, std::exchange(bytes, {}));
      std::string_view rest = next.text;
      if (drops_next && rest.starts_with(kMetaSpace)) {
        rest.remove_prefix(kMetaSpace.size());
        if (keeps_one) text.push_back(' ');
      }
      drops_next = drops_next && file_.remove_extra_whitespaces && rest.empty();
      text += with_spaces(rest);
    }
    append_characters(text, bytes);
    return text;
  }

  std::string bytes_of(std::int32_t id) const override {
    const auto& token = checked_piece(id);
    if (token.kind == Kind::byte) return std::string(1, *fallback_byte(token.text));
    return is_special(id) ? token.text : with_spaces(token.text);
  }

  std::optional<std::int32_t> find(std::string_view token) const override {
    const auto found = ids_.find(token);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

  bool is_special(std::int32_t id) const override {
    return id >= 0 && id < vocabulary() && bpe_.model().special[static_cast<std::size_t>(id)];
  }

  void mark_special(std::int32_t id) override {
    if (is_special(id)) return;
    bpe_.mark_special(id);
    make_added();
  }

 private:
  struct Workspace {
    Matcher matcher;
    Bpe::Workspace bpe;
    std::vector<std::int32_t> ids;
  };

  const SentencePieceFile::Piece& piece(std::int32_t id) const {
    return file_.pieces[static_cast<std::size_t>(id)];
  }

  const SentencePieceFile::Piece& checked_piece(std::int32_t id) const {
    if (id < 0 || id >= vocabulary()) {
      throw_user_error("token {} cannot be turned into text: the tokenizer has the ids 0 to {}", id,
                       vocabulary() - 1);
    }
    return piece(id);
  }

  static std::string with_spaces(std::string_view piece) {
    std::string text;
    for (std::size_t at = 0; at < piece.size();) {
      const auto next = std::min(piece.find(kMetaSpace, at), piece.size());
      text.append(piece.substr(at, next - at));
      if (next == piece.size()) break;
      text.push_back(' ');
      at = next + kMetaSpace.size();
    }
    return text;
  }

  /// Each byte that belongs to no character becomes U+FFFD.
  static void append_characters(std::string& text, std::string_view bytes) {
    while (!bytes.empty()) {
      const auto character = bytes.substr(0, character_bytes(bytes[0]));
      const bool good = is_well_formed(character);
      if (good) {
        text += character;
      } else {
        append_character(text, 0xFFFD);
      }
      bytes.remove_prefix(good ? character.size() : 1);
    }
  }

  void make_added() {
    std::vector<AddedToken> symbols, user_defined;
    for (std::int32_t id = 0; id < vocabulary(); ++id) {
      AddedToken token{.id = id, .content = piece(id).text, .special = is_special(id)};
      if (!is_well_formed(token.content)) continue;  // stands in no text
      if (token.special) symbols.push_back(token);
      if (piece(id).kind != Kind::user_defined) continue;
      token.special = token.special || is_chat_token(token.content);
      user_defined.push_back(token);
    }
    symbols_ = AddedTokens(std::move(symbols));
    user_defined_ = AddedTokens(std::move(user_defined));
  }

  /// Characters that are no pieces of their own are bytes, or unknown. Unused pieces are merged to like
  /// others, but in the end the two that they were merged from take their place.
  void make_replacements() {
    const auto& model = bpe_.model();
    for (const auto& [text, id] : model.vocabulary) {
      if (id < vocabulary()) continue;
      auto& ids = replacements_[id];
      if (!model.byte_tokens) ids.push_back(*model.unknown);
      for (std::size_t i = 0; model.byte_tokens && i < text.size(); ++i)
        ids.push_back((*model.byte_tokens)[static_cast<unsigned char>(text[i])]);
    }
    Bpe::Workspace workspace;
    for (std::int32_t id = 0; id < vocabulary(); ++id) {
      if (piece(id).kind != Kind::unused || !is_merged(piece(id))) continue;
      bpe_.mark_special(id);
      bpe_.encode(piece(id).text, true, workspace, replacements_[id]);
      bpe_.mark_special(id, false);
    }
  }

  /// Calls `put_token` with each token that is found in a text, and `put_text` with what is between them, normalized.
  void walk(std::string_view text, bool special_is_text, Matcher& matcher, const auto& put_token,
            const auto& put_text) const {
    std::string storage;
    AddedTokens::Pieces pieces(symbols_, matcher, well_formed(text, storage), special_is_text);
    while (const auto piece = pieces.next()) {
      if (piece->token) {
        put_token(*piece->token);
        continue;
      }
      const auto part = normalized(piece->text, special_is_text, matcher);
      AddedTokens::Pieces inner(user_defined_, matcher, part, special_is_text);
      while (const auto word = inner.next()) word->token ? put_token(*word->token) : put_text(word->text);
    }
  }

  /// With "▁" for spaces. Where spaces are removed, those of user-defined pieces stay.
  std::string normalized(std::string_view text, bool special_is_text, Matcher& matcher) const {
    std::string result;
    if (file_.add_dummy_prefix && !text.empty()) result = kMetaSpace;
    const auto append = [&](std::string_view part) {
      for (const char c : part) c == ' ' ? void(result += kMetaSpace) : result.push_back(c);
    };
    if (!file_.remove_extra_whitespaces) {
      append(text);
      return result;
    }
    bool behind_space = true;
    AddedTokens::Pieces pieces(user_defined_, matcher, text, special_is_text);
    while (const auto part = pieces.next()) {
      for (std::string_view rest = part->text; !rest.empty();) {
        auto next = rest.substr(0, part->token ? rest.size() : 1);
        rest.remove_prefix(next.size());
        while (behind_space && next.starts_with(' ')) next.remove_prefix(1);
        append(next);
        if (!next.empty()) behind_space = next.ends_with(' ');
      }
    }
    while (result.ends_with(kMetaSpace)) result.resize(result.size() - kMetaSpace.size());
    return result;
  }

  void encode_between(std::string_view text, bool special_is_text, Workspace& workspace,
                      std::vector<std::int32_t>& ids) const {
    if (replacements_.empty()) return bpe_.encode_text(text, special_is_text, workspace.bpe, ids);
    workspace.ids.clear();
    bpe_.encode_text(text, special_is_text, workspace.bpe, workspace.ids);
    append(workspace.ids, ids.size(), ids);
  }

  /// What is unknown is one token, however long it is.
  void append(const std::vector<std::int32_t>& merged, std::size_t begin,
              std::vector<std::int32_t>& ids) const {
    for (const auto id : merged) {
      if (const auto other = replacements_.find(id); other != replacements_.end()) {
        append(other->second, begin, ids);
      } else if (id != bpe_.model().unknown || ids.size() == begin || ids.back() != id) {
        ids.push_back(id);
      }
    }
  }

  SentencePieceFile file_;
  Bpe bpe_;
  Vocabulary ids_;
  AddedTokens symbols_;       // looked for in the text
  AddedTokens user_defined_;  // looked for behind the cut at symbols
  std::unordered_map<std::int32_t, std::vector<std::int32_t>> replacements_;  // of what merges may leave
  mutable Workspaces<Workspace> workspaces_;
};

}  // namespace

std::unique_ptr<FileTokenizer> parse_sentencepiece(std::string_view bytes, const std::string& source) {
  return std::make_unique<SentencePieceTokenizer>(read_sentencepiece_file(bytes, source), source);
}

}  // namespace llampi::tokenizer
