// tokenizer.model, by the SentencePiece library. Texts are cut at control symbols first, and each piece
// between them is a text of its own: what Hugging Face's LlamaTokenizer does with legacy=True, as Llama 2 was
// trained. Then a BPE text is cut into words, where no token of the model can cross: the library works on a
// word in far less time and memory than on a whole text, and most words are known already.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/tokenizer/utf8.hpp"
#include "tokenizer/added.hpp"
#include "tokenizer/bpe.hpp"
#include "tokenizer/files.hpp"
#include "tokenizer/sentencepiece_file.hpp"
#include "tokenizer/steps.hpp"

namespace llampi::tokenizer {
namespace {

using Processor = sentencepiece::SentencePieceProcessor;

constexpr std::string_view kMetaSpace = "\xE2\x96\x81";  // U+2581, which stands for a space

void load(Processor& processor, std::string_view bytes, const std::string& source) {
  std::string reason;
  try {
    const auto status = processor.LoadFromSerializedProto(bytes);
    if (status.ok()) return;
    reason = status.ToString();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  throw_user_error("{}: the SentencePiece library does not accept this model: {}", source, reason);
}

class SentencePieceTokenizer : public FileTokenizer {
 public:
  SentencePieceTokenizer(std::string_view bytes, const std::string& source)
      : file_(read_sentencepiece_file(bytes, source)) {
    check_support(source);
    load(library_, bytes, source);
    special_.resize(static_cast<std::size_t>(vocabulary()));
    for (std::int32_t id = 0; id < vocabulary(); ++id) {
      if (comes_from_text(id)) continue;
      special_[static_cast<std::size_t>(id)] = true;
      names_.push_back({.id = id, .content = library_.IdToPiece(id), .special = true});
    }
    symbols_ = AddedTokens(names_);
    cut_into_words_ = may_cut_into_words();
    cut_at_newlines_ = may_cut_at_newlines();
    if (cut_into_words_) load(words_, without_dummy_prefix(bytes), source);
    if (library_.bos_id() >= 0) set_begin(library_.bos_id());
    if (library_.eos_id() >= 0) set_end(library_.eos_id());
  }

  std::string name() const override {
    return fmt::format("tokenizer.model (SentencePiece BPE, {})", vocabulary());
  }
  std::int64_t vocabulary() const override { return library_.GetPieceSize(); }
  bool begins_by_default() const override { return true; }

  std::vector<std::int32_t> encode(std::string_view text, SpecialText special, TextStart) const override {
    const auto lease = workspaces_.take();
    std::string storage;
    text = well_formed(text, storage);
    std::vector<std::int32_t> ids;
    if (text.empty()) return ids;
    if (special == SpecialText::text) {
      encode_piece(text, *lease, ids);
      const bool good =
          std::ranges::none_of(ids, [&](auto id) { return is_special(id) && comes_from_text(id); });
      if (!good) encode_cut(text, *lease, ids);
      return ids;
    }
    AddedTokens::Pieces pieces(symbols_, (*lease).matcher, text, false);
    while (const auto piece = pieces.next()) {
      if (piece->token) {
        ids.push_back(piece->token->id);
      } else {
        encode_piece(piece->text, *lease, ids);
      }
    }
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::vector<int> run;
    const auto end_run = [&] {
      if (!run.empty()) text += decode_run(run, text.empty());
      run.clear();
    };
    for (const auto id : ids) {
      check(id);
      if (special_[static_cast<std::size_t>(id)]) {
        end_run();
        text += library_.IdToPiece(id);
      } else {
        run.push_back(id);
      }
    }
    end_run();
    return text;
  }

  std::string bytes_of(std::int32_t id) const override {
    check(id);
    const std::string& piece = library_.IdToPiece(id);
    if (library_.IsByte(id)) return std::string(1, fallback_byte(piece).value_or('?'));
    if (special_[static_cast<std::size_t>(id)]) return piece;
    return with_spaces(piece);
  }

  std::optional<std::int32_t> find(std::string_view token) const override {
    const int id = library_.PieceToId(token);
    if (id < 0 || id >= vocabulary() || library_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }

  bool is_special(std::int32_t id) const override {
    return id >= 0 && id < vocabulary() && special_[static_cast<std::size_t>(id)];
  }

 protected:
  void mark_special(std::int32_t id) override {
    if (is_special(id)) return;
    special_[static_cast<std::size_t>(id)] = true;
    names_.push_back({.id = id, .content = library_.IdToPiece(id), .special = true});
    symbols_ = AddedTokens(names_);
  }

 private:
  struct Workspace {
    Matcher matcher;
    WordCache cache;
    std::vector<int> ids;
  };

  void check_support(const std::string& source) const {
    if (!file_.is_bpe) throw_user_error("{}: only BPE models are supported, as Llama 2's is", source);
    if (file_.has_character_map) {
      throw_user_error(
          "{}: the model normalizes texts (its normalization rule is not \"identity\"), which is not "
          "supported",
          source);
    }
    if (file_.whitespace_is_suffix || !file_.escape_whitespaces) {
      throw_user_error("{}: treat_whitespace_as_suffix and escape_whitespaces=false are not supported",
                       source);
    }
  }

  void check(std::int32_t id) const {
    if (id < 0 || id >= vocabulary()) {
      throw_user_error("token {} cannot be turned into text: the tokenizer has the ids 0 to {}", id,
                       vocabulary() - 1);
    }
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

  /// Whether no token has a space behind anything else, and spaces stay as they are.
  bool may_cut_into_words() const {
    if (file_.remove_extra_whitespaces) return false;
    for (std::int32_t id = 0; id < vocabulary(); ++id) {
      const std::string text = with_spaces(library_.IdToPiece(id));
      const auto first = text.find_first_not_of(' ');
      if (first != std::string::npos && text.find(' ', first) != std::string::npos && !is_special(id))
        return false;
    }
    return find(kMetaSpace).has_value();
  }

  /// Whether the library gives this id when the token's name stands in a text.
  bool comes_from_text(std::int32_t id) const { return !library_.IsControl(id) && !library_.IsUnknown(id); }

  /// Whether a newline becomes a byte token: no other token has one.
  bool may_cut_at_newlines() const {
    for (std::int32_t id = 0; id < vocabulary(); ++id) {
      if (library_.IdToPiece(id).find('\n') != std::string::npos) return false;
    }
    const auto byte = find("<0x0A>");
    return byte && library_.IsByte(*byte);
  }

  void encode_piece(std::string_view text, Workspace& workspace, std::vector<std::int32_t>& ids) const {
    if (!cut_into_words_ || !file_.add_dummy_prefix) return encode_rest(text, workspace, ids);
    encode_rest(std::string(" ").append(text), workspace, ids);
  }

  void encode_rest(std::string_view text, Workspace& workspace, std::vector<std::int32_t>& ids) const {
    if (!cut_into_words_) return encode_word(text, workspace, ids);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = word_end(text, begin);
      encode_word(text.substr(begin, end - begin), workspace, ids);
      begin = end;
    }
  }

  /// Cuts the names of special tokens behind their first character, so that they do not come out as tokens.
  void encode_cut(std::string_view text, Workspace& workspace, std::vector<std::int32_t>& ids) const {
    ids.clear();
    std::size_t begin = 0;
    const auto encode_to = [&](std::size_t end) {
      const auto part = text.substr(begin, end - begin);
      if (begin == 0) {
        encode_piece(part, workspace, ids);
      } else {
        encode_rest(part, workspace, ids);
      }
      begin = end;
    };
    AddedTokens::Pieces pieces(symbols_, workspace.matcher, text, false);
    while (const auto piece = pieces.next()) {
      const auto at = static_cast<std::size_t>(piece->text.data() - text.data());
      if (piece->token) encode_to(at + character_bytes(text[at]));
    }
    if (begin < text.size()) encode_to(text.size());
  }

  /// Spaces and what stands before the next ones, or a newline. A "▁" of the text itself is a space to the
  /// model.
  std::size_t word_end(std::string_view text, std::size_t at) const {
    const auto space_at = [&](std::size_t i) -> std::size_t {
      if (text[i] == ' ') return 1;
      return text[i] == kMetaSpace[0] && text.substr(i).starts_with(kMetaSpace) ? kMetaSpace.size() : 0;
    };
    const auto newline_at = [&](std::size_t i) { return cut_at_newlines_ && text[i] == '\n'; };
    if (newline_at(at)) return at + 1;
    while (at < text.size() && space_at(at) > 0) at += space_at(at);
    while (at < text.size() && space_at(at) == 0 && !newline_at(at)) ++at;
    return at;
  }

  void encode_word(std::string_view word, Workspace& workspace, std::vector<std::int32_t>& ids) const {
    WordCache::Word* place = word.size() <= WordCache::kMaxBytes ? &workspace.cache.place(word) : nullptr;
    if (place && WordCache::holds(*place, word)) {
      ids.insert(ids.end(), place->ids.begin(), place->ids.begin() + place->count);
      return;
    }
    const auto status = (cut_into_words_ ? words_ : library_).Encode(word, &workspace.ids);
    if (!status.ok()) refuse_to("encode a text", status.ToString());
    if (place) WordCache::put(*place, word, workspace.ids.data(), workspace.ids.size());
    ids.insert(ids.end(), workspace.ids.begin(), workspace.ids.end());
  }

  /// Models that the library accepts may still contradict themselves: a control symbol of one character.
  [[noreturn]] static void refuse_to(const char* what, const std::string& reason) {
    throw_user_error("the SentencePiece library cannot {} with this tokenizer.model: {}", what, reason);
  }

  /// Tokens without special ones. The library drops the space before a text; within one it stays.
  std::string decode_run(const std::vector<int>& ids, bool is_first) const {
    const bool drops_space = file_.add_dummy_prefix || file_.remove_extra_whitespaces;
    const bool keep_space = !is_first && drops_space && library_.IdToPiece(ids[0]).starts_with(kMetaSpace);
    std::string text;
    const auto status = library_.Decode(ids, &text);
    if (!status.ok()) refuse_to("decode tokens", status.ToString());
    return keep_space ? " " + text : text;
  }

  SentencePieceFile file_;
  Processor library_;
  Processor words_;                // adds no space before a word; only where texts are cut
  std::vector<AddedToken> names_;  // of special tokens
  AddedTokens symbols_;
  std::vector<bool> special_;
  bool cut_into_words_ = false;
  bool cut_at_newlines_ = false;
  mutable Workspaces<Workspace> workspaces_;
};

}  // namespace

std::unique_ptr<FileTokenizer> parse_sentencepiece(std::string_view bytes, const std::string& source) {
  return std::make_unique<SentencePieceTokenizer>(bytes, source);
}

}  // namespace llampi::tokenizer
