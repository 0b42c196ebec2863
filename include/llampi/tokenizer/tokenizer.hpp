// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llampi::tokenizer {

/// What becomes of the names of special tokens ("<|eot_id|>") that stand in a text.
enum class SpecialText : std::uint8_t {
  tokens,  ///< each is its token, as Hugging Face's tokenizers have it: for texts one trusts
  text,    ///< they are characters like others: what a user wrote cannot end his turn
};

/// Where a text stands. Some tokenizers put a space before a text that nothing precedes (Metaspace with
/// prepend_scheme "first").
enum class TextStart : std::uint8_t {
  beginning,
  after_special,  ///< directly after a special token; the caller has its id
};

/// Which white space next to a special token belongs to it, and is not encoded.
struct TokenStrips {
  bool before = false, behind = false;
};

/// The chat template of a tokenizer's folder, a Jinja text.
struct ChatTemplateText {
  std::string text;
  std::string source;  ///< the file, for messages
};

/// Immutable: may be used by several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name()
      const = 0;  ///< for token files and the log: "bytes", "tokenizer.json (BPE, 128256)"
  /// One more than the largest id.
  virtual std::int64_t vocabulary() const = 0;
  /// The ids of a text alone, without the tokens that begin() and end() give.
  /// Bytes that are not UTF-8 are encoded as U+FFFD, but by "bytes".
  virtual std::vector<std::int32_t> encode(std::string_view text, SpecialText special = SpecialText::tokens,
                                           TextStart start = TextStart::beginning) const = 0;
  /// encode(text) in parts whose ids do not depend on what stands around them, as words and special tokens are; for comparison,
  /// without meaning otherwise. The ids, where a tokenizer has no such parts.
  virtual std::vector<std::string> parts(std::string_view text) const {
    std::vector<std::string> parts;
    for (const auto id : encode(text)) parts.push_back(std::to_string(id));
    return parts;
  }
  /// Whether bytes that are not UTF-8 keep their meaning.
  virtual bool takes_any_bytes() const { return false; }
  /// Whether a text may be cut anywhere and encoded piece by piece, with the same ids.
  virtual bool encodes_piecewise() const { return false; }
  /// Special tokens appear by name. Tokens may be parts of characters: what is not UTF-8 as a whole becomes
  /// U+FFFD, but by "bytes". @throws UserError for an id outside the vocabulary
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// The bytes that one token stands for; for output that appears token by token.
  virtual std::string bytes_of(std::int32_t id) const = 0;
  /// The id of a token by its exact name, special ones too ("<|eot_id|>", "</s>").
  virtual std::optional<std::int32_t> find(std::string_view token) const = 0;
  /// Whether the id is that of a token: some tokenizers leave ids unused.
  virtual bool has(std::int32_t id) const { return id >= 0 && id < vocabulary(); }
  virtual bool is_special(std::int32_t id) const = 0;
  /// Special tokens, and others that were added to the vocabulary.
  virtual bool is_added(std::int32_t id) const { return is_special(id); }
  /// "lstrip" and "rstrip" of a tokenizer.json: of a token that encode() finds, it knows itself.
  virtual TokenStrips strips(std::int32_t /*id*/) const { return {}; }
  /// What the files say stands before a text (<|begin_of_text|>, <s>) and ends a document (<|end_of_text|>,
  /// </s>).
  virtual std::optional<std::int32_t> begin() const = 0;
  virtual std::optional<std::int32_t> end() const = 0;
  /// bos_token of chat templates: also where the files say that texts begin without it.
  virtual std::optional<std::int32_t> bos_token() const { return begin(); }
  /// chat_template.jinja, or "chat_template" of tokenizer_config.json; of several the one named "default".
  virtual std::optional<ChatTemplateText> chat_template() const { return std::nullopt; }
};

}  // namespace llampi::tokenizer
