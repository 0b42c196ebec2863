// SPDX-License-Identifier: Apache-2.0
// tokenizer.json taken apart: parse_parts reads it, JsonTokenizer works with it. Private to the library.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/added.hpp"
#include "tokenizer/bpe.hpp"
#include "tokenizer/files.hpp"
#include "tokenizer/steps.hpp"

namespace llampi::tokenizer {

struct TokenizerParts {
  std::vector<std::string> names;  ///< by id; empty where no token has this id
  std::size_t entries = 0;         ///< of the model's vocabulary, "" counted
  BpeModel model;
  std::vector<AddedToken> added;
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  std::vector<Decoder> decoders;
  std::optional<std::int32_t> begin;  ///< what the template of a single text puts before it
  std::optional<std::int32_t> end;    ///< and behind it
};

// Each reads one entry of the file and complains with the entry's name.
void read_normalizer(const nlohmann::json& value, const std::string& where, TokenizerParts& parts);
void read_pre_tokenizer(const nlohmann::json& value, const std::string& where, TokenizerParts& parts);
void read_decoder(const nlohmann::json& value, const std::string& where, TokenizerParts& parts);
/// Names and model, of which words_are_bytes is known already.
void read_model(const nlohmann::json& value, const std::string& where, TokenizerParts& parts);
void read_added_tokens(const nlohmann::json& value, const std::string& where, TokenizerParts& parts);
void read_post_processor(const nlohmann::json& value, const std::string& where, TokenizerParts& parts);

TokenizerParts parse_parts(std::string_view text, const std::string& source);

class JsonTokenizer : public FileTokenizer {
 public:
  explicit JsonTokenizer(TokenizerParts parts);

  std::string name() const override;
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(names_.size()); }
  std::vector<std::int32_t> encode(std::string_view text, SpecialText special,
                                   TextStart start) const override;
  std::vector<std::string> parts(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::string bytes_of(std::int32_t id) const override;
  std::optional<std::int32_t> find(std::string_view token) const override;
  bool has(std::int32_t id) const override;
  bool is_special(std::int32_t id) const override;
  bool is_added(std::int32_t id) const override { return is_special(id) || added_token(id) != nullptr; }
  TokenStrips strips(std::int32_t id) const override;
  bool is_byte_level() const override { return bpe_.model().words_are_bytes; }
  bool adds_prefix_space() const override;
  bool knows_added_tokens() const override { return true; }
  const AddedToken* added_token(std::int32_t id) const override;
  void add_token(AddedToken token) override;
  void mark_special(std::int32_t id) override;

 private:
  struct Workspace {
    Matcher matcher;
    Bpe::Workspace bpe;
  };
  /// One text on its way to ids.
  struct Encoding {
    Workspace& workspace;
    bool special_is_text;
    std::vector<std::int32_t>& ids;
    std::vector<std::string>* parts = nullptr;  ///< wanted instead
  };
  void encode(std::string_view text, TextStart start, Encoding& encoding) const;
  void put_token(std::int32_t id, Encoding& encoding) const;
  void encode_normalized(std::string_view text, bool is_first, Encoding& encoding) const;
  void encode_piece(std::string_view piece, bool is_first, std::size_t step, Encoding& encoding) const;
  const std::string& name_of(std::int32_t id) const;

  std::vector<std::string> names_;
  Vocabulary id_of_name_;                           // of two tokens with one name the added one
  std::map<std::int32_t, AddedToken> added_by_id_;  // as the file has them
  Bpe bpe_;
  AddedTokens added_;             // looked for in the text
  AddedTokens added_normalized_;  // looked for in what normalizers make of it
  std::vector<Normalizer> normalizers_;
  std::vector<PreTokenizer> pre_tokenizers_;
  std::vector<Decoder> decoders_;
  mutable Workspaces<Workspace> workspaces_;
};

}  // namespace llampi::tokenizer
