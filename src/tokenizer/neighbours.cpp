// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/posix_file.hpp"
#include "tokenizer/fields.hpp"
#include "tokenizer/files.hpp"

namespace llampi::tokenizer {

namespace fs = std::filesystem;
using nlohmann::json;
using File = TokenizerNeighbours::File;

void FileTokenizer::set_begin(std::optional<std::int32_t> id) {
  begin_ = id;
  if (id) mark_special(*id);
}

void FileTokenizer::set_end(std::optional<std::int32_t> id) {
  end_ = id;
  if (id) mark_special(*id);
}

void FileTokenizer::set_bos_token(std::int32_t id) {
  bos_token_ = id;
  mark_special(id);
}

namespace {

/// The name of a token: a string, or an object with the string in "content".
std::string token_name(const json& value, const std::string& where) {
  if (value.is_object()) return Fields(value, where).text("content");
  if (!value.is_string()) throw_user_error("{} must be a string", where);
  return value.get<std::string>();
}

/// transformers makes each token that begins or ends texts one that is found in them, also where the tokenizer's own file has it
/// in the vocabulary only.
/// @param value its name, or an object with flags
void add_token(FileTokenizer& tokenizer, std::int32_t id, std::string name, const json& value,
               const std::string& where) {
  AddedToken token{.id = id, .content = std::move(name), .special = true};
  if (value.is_object()) {
    Fields fields(value, where);
    token.single_word = fields.flag("single_word", false);
    token.lstrip = fields.flag("lstrip", false);
    token.rstrip = fields.flag("rstrip", false);
    token.normalized = fields.flag("normalized", false);
  }
  tokenizer.add_token(std::move(token));
}

/// One that holds an object.
struct ParsedFile {
  json object;
  std::string source;

  Fields fields() const { return {object, source}; }
};

std::optional<ParsedFile> parsed(const std::optional<File>& file) {
  if (!file) return std::nullopt;
  return ParsedFile{parse_object(file->text, file->source), file->source};
}

/// The id of the token that `key` names; nothing if it is missing or null. The token is found in texts from then on.
/// @param required whether a token that the tokenizer does not have is an error, or nothing
std::optional<std::int32_t> token_named(FileTokenizer& tokenizer, const std::optional<ParsedFile>& file,
                                        const char* key, bool required = true) {
  if (!file) return std::nullopt;
  Fields fields = file->fields();
  const json* value = fields.find(key);
  if (!value) return std::nullopt;
  const std::string where = file->source + ": " + key;
  std::string name = token_name(*value, where);
  const auto id = tokenizer.find(name);
  if (!id && required)
    fields.refuse(fmt::format("\"{}\" is {}, which is not a token of the tokenizer", key, in_quotes(name)));
  if (id) add_token(tokenizer, *id, std::move(name), *value, where);
  return id;
}

/// The same for a file that gives an id, or several of which the first counts; -1: none.
std::optional<std::int32_t> token_numbered(const FileTokenizer& tokenizer,
                                           const std::optional<ParsedFile>& file, const char* key) {
  if (!file) return std::nullopt;
  Fields fields = file->fields();
  const json* value = fields.find(key);
  if (value && value->is_array()) value = value->empty() ? nullptr : &(*value)[0];
  if (!value || *value == -1) return std::nullopt;
  const bool known = value->is_number_unsigned() &&
                     value->get<std::uint64_t>() < static_cast<std::uint64_t>(tokenizer.vocabulary());
  if (!known) fields.refuse(fmt::format("\"{}\" is not an id from 0 to {}", key, tokenizer.vocabulary() - 1));
  return value->get<std::int32_t>();
}

/// Tokens of other files must be the tokenizer's own, or texts would be read otherwise than the model was trained.
/// @param id nullptr: any
void check_added_token(const FileTokenizer& tokenizer, const std::string& name, const json* id,
                       const std::string& source) {
  const auto own = tokenizer.find(name);
  if (!own || (id && *id != *own)) {
    throw_user_error(
        "{}: {} is not in the tokenizer's own file{}; save the tokenizer as tokenizer.json "
        "(save_pretrained() in transformers), which then holds all its tokens",
        source, in_quotes(name), id ? " with this id" : "");
  }
  if (!tokenizer.knows_added_tokens() || tokenizer.added_token(*own) != nullptr) return;
  throw_user_error(
      "{}: {} is a token of the vocabulary only in the tokenizer's own file, and would be found in texts before they are "
      "cut into words; list it in \"added_tokens\" there, or leave it out here",
      source, in_quotes(name));
}

/// added_tokens.json, which older programs wrote: ids by name.
void check_added_tokens(const FileTokenizer& tokenizer, const File& file) {
  const json object = parse_object(file.text, file.source);
  for (const auto& [name, id] : object.items()) check_added_token(tokenizer, name, &id, file.source);
}

/// transformers adds these tokens once more, with flags that win over those of the tokenizer's own file.
void check_flags(const FileTokenizer& tokenizer, std::int32_t id, Fields& fields) {
  struct Flag {
    const char* name;
    bool AddedToken::*own;
    bool otherwise = false;
  };
  const bool special = fields.flag("special", false);
  const std::string name = in_quotes(fields.text("content"));
  const auto* own = tokenizer.added_token(id);
  for (const auto& [flag, member, otherwise] :
       {Flag{"lstrip", &AddedToken::lstrip}, Flag{"rstrip", &AddedToken::rstrip},
        Flag{"single_word", &AddedToken::single_word},
        Flag{"normalized", &AddedToken::normalized, !special}}) {
    const bool wanted = fields.flag(flag, otherwise);
    if (wanted == own->*member) continue;
    fields.refuse(fmt::format(
        "{} has {} = {}{}, but {} in the tokenizer's own file; give both the one that the model was trained with",
        name, flag, wanted, fields.find(flag) ? "" : " unless it is given", own->*member));
  }
}

/// "added_tokens_decoder" of tokenizer_config.json: {"content": NAME, ...} by id.
void check_added_tokens_decoder(FileTokenizer& tokenizer, const json& tokens, const std::string& source) {
  const auto where = source + ": added_tokens_decoder";
  for (const auto& [id, token] : tokens.items()) {
    const auto number = parse_number<std::int32_t>(id);
    if (!number) throw_user_error("{}: {} is not an id", where, in_quotes(id));
    const json expected(*number);
    Fields fields(token, where);
    check_added_token(tokenizer, fields.text("content"), &expected, where);
    if (tokenizer.knows_added_tokens()) check_flags(tokenizer, *number, fields);
    if (fields.flag("special", false)) tokenizer.mark_special(*number);
  }
}

/// "additional_special_tokens" or "extra_special_tokens": a list of tokens, or an object with them as values. transformers
/// gives new ids to those that the tokenizer lacks.
void check_special_tokens(const FileTokenizer& tokenizer, Fields& fields, const char* key) {
  const json* tokens = fields.find(key);
  if (!tokens) return;
  if (!tokens->is_structured()) fields.refuse(fmt::format("\"{}\" is neither a list nor an object", key));
  const auto where = fields.where() + ": " + key;
  for (const json& token : *tokens) check_added_token(tokenizer, token_name(token, where), nullptr, where);
}

bool is_llama_class(std::string_view name) {
  return name.starts_with("LlamaTokenizer") || name.starts_with("CodeLlamaTokenizer");
}

/// Classes of transformers that take add_prefix_space from tokenizer_config.json: for bytes these three always, false where it
/// is missing; for "▁" the Llama ones where it is there. Others take the tokenizer's own.
void check_prefix_space(const FileTokenizer& tokenizer, Fields& fields) {
  const bool own = tokenizer.adds_prefix_space();
  const std::string name = fields.text("tokenizer_class", "");
  const bool is_given = fields.find("add_prefix_space") != nullptr;
  const bool is_taken = tokenizer.is_byte_level()
                            ? name.starts_with("GPT2Tokenizer") || name.starts_with("GPTNeoXTokenizer") ||
                                  name.starts_with("Qwen2Tokenizer")
                            : is_llama_class(name) && is_given;
  const bool wanted = fields.flag("add_prefix_space", false);
  if (!is_taken || wanted == own) return;
  fields.refuse(fmt::format(
      "{} has add_prefix_space = {}{}, but the tokenizer's own file puts {} space before a text; give both the one "
      "that the model was trained with",
      name, wanted, is_given ? "" : " unless it is given", own ? "a" : "no"));
}

/// What tokenizer_config.json would change of the ids in transformers is refused.
void check_config(FileTokenizer& tokenizer, Fields fields) {
  if (fields.find("added_tokens_decoder") != nullptr)
    check_added_tokens_decoder(tokenizer, fields.object("added_tokens_decoder"), fields.where());
  check_prefix_space(tokenizer, fields);
  if (fields.flag("split_special_tokens", false))
    fields.refuse(
        "\"split_special_tokens\" = true is not supported: names of special tokens in a text are these tokens here; "
        "leave it out");
}

/// So is what lists of names would change of them. Once the tokens that begin and end texts are found in them.
void check_names(const FileTokenizer& tokenizer, const TokenizerNeighbours& files,
                 const std::optional<ParsedFile>& config) {
  if (files.added_tokens) check_added_tokens(tokenizer, *files.added_tokens);
  bool has_decoder = false;  // transformers then takes no tokens from special_tokens_map.json
  if (config) {
    Fields fields = config->fields();
    has_decoder = fields.find("added_tokens_decoder") != nullptr;
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"})
      check_special_tokens(tokenizer, fields, key);
  }
  if (has_decoder) return;
  if (const auto map = parsed(files.special_tokens_map)) {
    Fields fields = map->fields();
    check_special_tokens(tokenizer, fields, "additional_special_tokens");
  }
}

/// "chat_template" of tokenizer_config.json: a text, or a list of {"name", "template"}.
std::optional<ChatTemplateText> configured_template(const File& file) {
  const json object = parse_object(file.text, file.source);
  Fields fields(object, file.source);
  const json* value = fields.find("chat_template");
  if (!value) return std::nullopt;
  if (!value->is_array()) return ChatTemplateText{fields.text("chat_template"), file.source};
  for (const auto& entry : *value) {
    Fields named(entry, file.source + ": chat_template");
    if (named.text("name") == "default") return ChatTemplateText{named.text("template"), file.source};
  }
  return std::nullopt;
}

/// Adds the ids that are there and not yet in `ids`.
void add_end_ids(const std::string& text, const std::string& source, std::vector<std::int32_t>& ids) {
  const json object = parse_object(text, source);
  Fields fields(object, source);
  const json* value = fields.find("eos_token_id");
  if (!value) return;
  for (const auto& id : value->is_array() ? *value : json::array({*value})) {
    if (!id.is_number_integer()) fields.refuse("\"eos_token_id\" is neither a number nor a list of them");
    const auto number = id.get<std::int64_t>();
    if (number < 0 || number > std::numeric_limits<std::int32_t>::max()) continue;  // -1: none
    if (std::ranges::find(ids, number) == ids.end()) ids.push_back(static_cast<std::int32_t>(number));
  }
}

}  // namespace

std::vector<std::int32_t> end_ids_of(const fs::path& folder) {
  std::vector<std::int32_t> ids;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto file = folder / name;
    std::error_code ignored;
    if (fs::exists(file, ignored)) add_end_ids(io::read_whole(file), file.string(), ids);
  }
  return ids;
}

std::vector<std::int32_t> end_ids_in(const std::string& text, const std::string& source) {
  std::vector<std::int32_t> ids;
  add_end_ids(text, source, ids);
  return ids;
}

void apply_neighbours(FileTokenizer& tokenizer, const TokenizerNeighbours& files) {
  const auto config = parsed(files.tokenizer_config);
  bool begins_by_default = tokenizer.begins_by_default();
  std::optional<bool> begins;
  if (config) {
    check_config(tokenizer, config->fields());
    Fields fields = config->fields();
    if (fields.find("add_bos_token")) begins = fields.flag("add_bos_token");
    // These classes of Hugging Face's have add_bos_token = true where nothing else is said.
    if (is_llama_class(fields.text("tokenizer_class", ""))) begins_by_default = true;
  }
  const bool needs_begin = begins.value_or(begins_by_default);
  auto bos_token = token_named(tokenizer, config, "bos_token", needs_begin);
  if (!bos_token)
    bos_token = token_named(tokenizer, parsed(files.special_tokens_map), "bos_token", needs_begin);
  if (bos_token) tokenizer.set_bos_token(*bos_token);
  if (needs_begin) {
    if (bos_token) tokenizer.set_begin(bos_token);
  } else if (begins) {
    tokenizer.set_begin(std::nullopt);
  }
  auto end = token_named(tokenizer, config, "eos_token");
  if (!end) end = token_named(tokenizer, parsed(files.special_tokens_map), "eos_token");
  if (!end && !tokenizer.end())
    end = token_numbered(tokenizer, parsed(files.generation_config), "eos_token_id");
  if (!end && !tokenizer.end()) end = token_numbered(tokenizer, parsed(files.config), "eos_token_id");
  if (end) tokenizer.set_end(end);
  check_names(tokenizer, files, config);
  if (auto text = chat_template_of(files)) tokenizer.set_chat_template(std::move(*text));
}

std::optional<ChatTemplateText> chat_template_of(const TokenizerNeighbours& files) {
  if (files.chat_template) return ChatTemplateText{files.chat_template->text, files.chat_template->source};
  return files.tokenizer_config ? configured_template(*files.tokenizer_config) : std::nullopt;
}

}  // namespace llampi::tokenizer
