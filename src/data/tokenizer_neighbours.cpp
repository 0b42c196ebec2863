#include <optional>
#include <string>

#include "data/tokenizer_fields.hpp"
#include "data/tokenizer_files.hpp"
#include "llampi/core/error.hpp"

namespace llampi {

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

namespace {

/// The id of the token that `key` names, as a string or an object with the string in "content"; nothing if it
/// is missing or null.
std::optional<std::int32_t> token_named(const FileTokenizer& tokenizer, const std::optional<File>& file,
                                        const char* key) {
  if (!file) return std::nullopt;
  const json object = parse_object(file->text, file->source);
  Fields fields(object, file->source);
  const json* value = fields.find(key);
  if (!value) return std::nullopt;
  const std::string name =
      value->is_object() ? Fields(*value, file->source + ": " + key).text("content") : fields.text(key);
  const auto id = tokenizer.find(name);
  if (!id)
    fields.refuse(fmt::format("\"{}\" is {}, which is no token of the tokenizer", key, in_quotes(name)));
  return id;
}

/// The same for a file that gives an id, or several of which the first counts.
std::optional<std::int32_t> token_numbered(const FileTokenizer& tokenizer, const std::optional<File>& file,
                                           const char* key) {
  if (!file) return std::nullopt;
  const json object = parse_object(file->text, file->source);
  Fields fields(object, file->source);
  const json* value = fields.find(key);
  if (value && value->is_array()) value = value->empty() ? nullptr : &(*value)[0];
  if (!value) return std::nullopt;
  const bool known = value->is_number_unsigned() &&
                     value->get<std::uint64_t>() < static_cast<std::uint64_t>(tokenizer.vocabulary());
  if (!known) fields.refuse(fmt::format("\"{}\" is no id from 0 to {}", key, tokenizer.vocabulary() - 1));
  return value->get<std::int32_t>();
}

/// Tokens in a file of their own, which older programs wrote, must be the tokenizer's own, or texts would be
/// read otherwise than the model was trained.
void check_added_tokens(const FileTokenizer& tokenizer, const std::optional<File>& file) {
  if (!file) return;
  const json object = parse_object(file->text, file->source);
  for (const auto& [name, id] : object.items()) {
    const auto own = tokenizer.find(name);
    if (!own || id != *own) {
      throw_user_error(
          "{}: {} is not in the tokenizer's own file with this id; save the tokenizer as tokenizer.json, "
          "which "
          "holds all its tokens",
          file->source, in_quotes(name));
    }
  }
}

}  // namespace

void apply_neighbours(FileTokenizer& tokenizer, const TokenizerNeighbours& files) {
  check_added_tokens(tokenizer, files.added_tokens);
  bool begins_by_default = tokenizer.begins_by_default();
  std::optional<bool> begins;
  if (files.tokenizer_config) {
    const json object = parse_object(files.tokenizer_config->text, files.tokenizer_config->source);
    Fields fields(object, files.tokenizer_config->source);
    if (fields.find("add_bos_token")) begins = fields.flag("add_bos_token");
    // This class of Hugging Face's has add_bos_token = true where nothing else is said.
    if (fields.text("tokenizer_class", "").starts_with("LlamaTokenizer")) begins_by_default = true;
  }
  if (begins.value_or(begins_by_default)) {
    auto begin = token_named(tokenizer, files.tokenizer_config, "bos_token");
    if (!begin) begin = token_named(tokenizer, files.special_tokens_map, "bos_token");
    if (begin) tokenizer.set_begin(begin);
  } else if (begins) {
    tokenizer.set_begin(std::nullopt);
  }
  auto end = token_named(tokenizer, files.tokenizer_config, "eos_token");
  if (!end) end = token_named(tokenizer, files.special_tokens_map, "eos_token");
  if (!end && !tokenizer.end()) end = token_numbered(tokenizer, files.generation_config, "eos_token_id");
  if (!end && !tokenizer.end()) end = token_numbered(tokenizer, files.config, "eos_token_id");
  if (end) tokenizer.set_end(end);
}

}  // namespace llampi
