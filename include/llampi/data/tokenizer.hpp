// Text to token ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llampi {

/// What becomes of the names of special tokens ("<|eot_id|>") that stand in a text.
enum class SpecialText : std::uint8_t {
  tokens,  ///< each is its token, as Hugging Face's tokenizers have it: for texts one trusts
  text,    ///< they are characters like others: what a user wrote cannot end his turn
};

/// Where a text stands. Some tokenizers put a space before a text that nothing precedes (Metaspace with
/// prepend_scheme "first").
enum class TextStart : std::uint8_t {
  beginning,
  after_special,  ///< right behind a special token, whose id the caller has
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
  virtual bool is_special(std::int32_t id) const = 0;
  /// What the files say stands before a text (<|begin_of_text|>, <s>) and ends a document (<|end_of_text|>,
  /// </s>).
  virtual std::optional<std::int32_t> begin() const = 0;
  virtual std::optional<std::int32_t> end() const = 0;
  /// bos_token of chat templates: also where the files say that texts begin without it.
  virtual std::optional<std::int32_t> bos_token() const { return begin(); }
  /// chat_template.jinja, or "chat_template" of tokenizer_config.json; of several the one named "default".
  virtual std::optional<ChatTemplateText> chat_template() const { return std::nullopt; }
};

/// "bytes" (ids are byte values, vocabulary 256); a file tokenizer.json (byte-level BPE, or the BPE with byte
/// fallback into which Llama 2's was converted) or tokenizer.model (SentencePiece); or a folder that holds
/// one of them, tokenizer.json first. Files beside it (tokenizer_config.json, special_tokens_map.json,
/// generation_config.json, config.json) say begin and end; chat_template.jinja and tokenizer_config.json may
/// have a chat template.
/// @throws UserError for anything else, and for malformed files, by name of what is wrong in them
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

/// CRC-32, in eight hexadecimal digits, of what the first `ids` ids mean: of each in turn the number of its
/// bytes in decimal digits, ":" and its bytes. The same for a tokenizer.model and the tokenizer.json it was
/// converted to, and where more tokens were added behind those.
/// @param ids at most vocabulary(); 0: all
std::string vocabulary_hash(const Tokenizer& tokenizer, std::int64_t ids = 0);
/// The ids that end a text as "eos_token_id" of generation_config.json and config.json in a folder have them:
/// numbers or lists, without doubles. Files that are missing say nothing. @throws UserError
std::vector<std::int32_t> end_ids_of(const std::filesystem::path& folder);
/// The same in the text of one such file. @param source its name, for messages
std::vector<std::int32_t> end_ids_in(const std::string& text, const std::string& source);

/// Whether the folder holds tokenizer.json or tokenizer.model.
bool holds_tokenizer(const std::filesystem::path& folder);

}  // namespace llampi
