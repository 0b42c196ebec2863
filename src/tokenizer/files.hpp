// SPDX-License-Identifier: Apache-2.0
// Tokenizers that are read from files. Private to the library.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llampi/tokenizer/tokenizer.hpp"
#include "tokenizer/added.hpp"

namespace llampi::tokenizer {

/// A tokenizer whose begin and end may be said by the files beside its own.
class FileTokenizer : public Tokenizer {
 public:
  std::optional<std::int32_t> begin() const override { return begin_; }
  std::optional<std::int32_t> end() const override { return end_; }
  std::optional<std::int32_t> bos_token() const override { return bos_token_ ? bos_token_ : begin_; }
  std::optional<ChatTemplateText> chat_template() const override { return chat_template_; }
  void set_begin(std::optional<std::int32_t> id);
  void set_end(std::optional<std::int32_t> id);
  void set_bos_token(std::int32_t id);
  void set_chat_template(ChatTemplateText chat_template) { chat_template_ = std::move(chat_template); }
  /// Whether a text starts with bos_token where add_bos_token is not there.
  virtual bool begins_by_default() const { return false; }
  /// Whether tokens are bytes, by the pre-tokenizer ByteLevel.
  virtual bool is_byte_level() const { return false; }
  /// Whether texts, or the first one, get a space before them, " " or "▁".
  virtual bool adds_prefix_space() const = 0;
  /// Whether added_token() tells; not for a tokenizer.model.
  virtual bool knows_added_tokens() const { return false; }
  /// How the token is found in texts; nullptr if it only comes out of merges.
  virtual const AddedToken* added_token(std::int32_t /*id*/) const { return nullptr; }
  /// Makes a token of the vocabulary one that is found in texts, if it is not yet.
  virtual void add_token(AddedToken /*token*/) {}
  /// Makes a token one that no user's text may become.
  virtual void mark_special(std::int32_t id) = 0;

 private:
  std::optional<std::int32_t> begin_;
  std::optional<std::int32_t> end_;
  std::optional<std::int32_t> bos_token_;
  std::optional<ChatTemplateText> chat_template_;
};

/// The contents of a tokenizer.json. `source` is its name in messages.
/// @throws UserError for what is malformed, and by name for what is not supported
std::unique_ptr<FileTokenizer> parse_tokenizer_json(std::string_view text, const std::string& source);

/// The contents of a tokenizer.model. @throws UserError likewise
std::unique_ptr<FileTokenizer> parse_sentencepiece(std::string_view bytes, const std::string& source);

/// Files that may lie beside a tokenizer's own; nothing for those that are not there.
struct TokenizerNeighbours {
  struct File {
    std::string source;
    std::string text;
  };
  std::optional<File> tokenizer_config;
  std::optional<File> special_tokens_map;
  std::optional<File> generation_config;
  std::optional<File> config;
  std::optional<File> added_tokens;
  std::optional<File> chat_template;  ///< chat_template.jinja
};

/// Begin and end as the files beside the tokenizer's own say. End: eos_token of tokenizer_config.json or
/// special_tokens_map.json, else what the tokenizer's own file says, else the (first) eos_token_id of
/// generation_config.json or config.json. Begin: what the tokenizer's own file says, unless
/// tokenizer_config.json has add_bos_token or names the class LlamaTokenizer: then bos_token, or none. The
/// chat template: chat_template.jinja, else tokenizer_config.json's.
/// @throws UserError for malformed files, for tokens that the tokenizer does not have, and for an add_prefix_space that
/// contradicts the tokenizer's
void apply_neighbours(FileTokenizer& tokenizer, const TokenizerNeighbours& files);
/// The chat template alone.
std::optional<ChatTemplateText> chat_template_of(const TokenizerNeighbours& files);

/// What a thread needs to work, kept for the next one: as many as ever worked at the same time.
template <class T>
class Workspaces {
 public:
  class Lease {
   public:
    Lease(Workspaces& from, std::unique_ptr<T> workspace) : from_(from), workspace_(std::move(workspace)) {}
    ~Lease() {
      const std::lock_guard lock(from_.mutex_);
      from_.free_.push_back(std::move(workspace_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    T& operator*() const { return *workspace_; }

   private:
    Workspaces& from_;
    std::unique_ptr<T> workspace_;
  };

  Lease take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto workspace = std::move(free_.back());
        free_.pop_back();
        return Lease(*this, std::move(workspace));
      }
      free_.reserve(++made_);  // giving back allocates nothing
    }
    return Lease(*this, std::make_unique<T>());
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
  std::size_t made_ = 0;
};

}  // namespace llampi::tokenizer
