// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: the model and the added tokens.
#include <algorithm>
#include <utility>

#include "llampi/core/error.hpp"
#include "tokenizer/chat_tokens.hpp"
#include "tokenizer/fields.hpp"
#include "tokenizer/json.hpp"

namespace llampi::tokenizer {
namespace {

using nlohmann::json;

// Ids that may be unused: room is made for every id up to the largest.
constexpr std::size_t kMaxUnused = 1 << 16;

void read_names(const json& entries, const std::string& where, TokenizerParts& parts) {
  if (entries.empty()) throw_user_error("{}: the vocabulary is empty", where);
  auto& names = parts.names;
  parts.entries = entries.size();
  names.resize(parts.entries);
  std::vector<bool> taken(entries.size());
  for (const auto& [name, value] : entries.items()) {
    const bool valid = value.is_number_unsigned() && value.get<std::uint64_t>() < entries.size() + kMaxUnused;
    if (!valid) {
      throw_user_error("{}: the id of {} must be an integer from 0 to {}, as there are {} tokens", where,
                       in_quotes(name), entries.size() + kMaxUnused - 1, entries.size());
    }
    const auto id = value.get<std::size_t>();
    if (id >= names.size()) {
      names.resize(id + 1);
      taken.resize(id + 1);
    }
    if (taken[id])
      throw_user_error("{}: {} and {} have the same id {}", where, in_quotes(names[id]), in_quotes(name), id);
    taken[id] = true;
    names[id] = name;
  }
}

/// By what words consist of: bytes, which byte-level names write as characters, or characters.
Vocabulary vocabulary_of(const TokenizerParts& parts) {
  const ByteCharacters characters;
  Vocabulary vocabulary;
  vocabulary.reserve(parts.names.size());
  for (std::size_t id = 0; id < parts.names.size(); ++id) {
    const auto& name = parts.names[id];
    if (name.empty()) continue;
    if (!parts.model.words_are_bytes) {
      vocabulary.emplace(name, id);
    } else if (auto bytes = characters.bytes(name)) {  // others cannot come out of a text
      vocabulary.emplace(std::move(*bytes), id);
    }
  }
  return vocabulary;
}

class MergeReader {
 public:
  MergeReader(const std::string& where, const TokenizerParts& parts) : where_(where) {
    for (std::size_t id = 0; id < parts.names.size(); ++id) {
      if (!parts.names[id].empty()) ids_.emplace(parts.names[id], static_cast<std::int32_t>(id));
    }
  }

  MergeTable read(const json& entries) {
    MergeTable table(entries.size());
    const bool pairs = !entries.empty() && entries[0].is_array();
    for (const auto& entry : entries) {
      if (pairs ? !is_pair(entry) : !entry.is_string()) {
        throw_user_error(
            "{}: merge {} is neither two tokens in a string nor a pair of strings, as the first is", where_,
            number_);
      }
      if (pairs) {
        put(entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>(), table);
      } else if (const std::string_view line = entry.get_ref<const std::string&>();
                 !line.starts_with("#version")) {
        put_line(line, table);
      }
      ++number_;
    }
    return table;
  }

 private:
  static bool is_pair(const json& entry) {
    return entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string();
  }

  void put_line(std::string_view line, MergeTable& table) {
    const auto space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      throw_user_error("{}: merge {}, {}, must be two tokens with one space between them", where_, number_,
                       in_quotes(line));
    }
    put(line.substr(0, space), line.substr(space + 1), table);
  }

  void put(std::string_view left, std::string_view right, MergeTable& table) {
    const auto id_of = [&](std::string_view token) {
      const auto found = ids_.find(token);
      if (found == ids_.end()) {
        throw_user_error("{}: merge {}, {} and {}, needs the token {}, which the vocabulary does not have",
                         where_, number_, in_quotes(left), in_quotes(right), in_quotes(token));
      }
      return found->second;
    };
    const std::int32_t left_id = id_of(left);
    const std::int32_t right_id = id_of(right);
    const std::int32_t whole = id_of(std::string(left).append(right));
    table.put(left_id, right_id, {static_cast<std::uint32_t>(number_), whole});
  }

  const std::string& where_;
  Vocabulary ids_;
  std::size_t number_ = 0;
};

std::optional<std::array<std::int32_t, 256>> byte_tokens(const Vocabulary& vocabulary) {
  std::array<std::int32_t, 256> ids{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary.find(fmt::format("<0x{:02X}>", byte));
    ids[byte] = found == vocabulary.end() ? -1 : found->second;
  }
  return ids;
}

/// What becomes of characters that the vocabulary does not have.
void read_unknown(Fields& fields, TokenizerParts& parts) {
  auto& model = parts.model;
  bool all_bytes = model.words_are_bytes;
  for (int byte = 0; all_bytes && byte < 256; ++byte) {
    all_bytes = model.vocabulary.contains(std::string(1, static_cast<char>(byte)));
  }
  model.fuse_unknown = fields.flag("fuse_unk", false);
  const bool byte_fallback = fields.flag("byte_fallback", false);
  const std::string unknown = fields.text("unk_token", "");
  if (all_bytes) return;  // nothing is unknown
  if (byte_fallback && model.words_are_bytes) {
    fields.refuse(
        "\"byte_fallback\" with a byte-level vocabulary that does not have every byte is not supported");
  }
  if (byte_fallback) model.byte_tokens = byte_tokens(model.vocabulary);
  if (unknown.empty()) return;
  const auto found = std::ranges::find(parts.names, unknown);
  if (found == parts.names.end()) {
    fields.refuse(fmt::format("unk_token {} is not in the vocabulary", in_quotes(unknown)));
  }
  model.unknown = static_cast<std::int32_t>(found - parts.names.begin());
}

AddedToken read_added_token(const json& value, const std::string& where) {
  Fields fields(value, where);
  AddedToken token;
  token.id = static_cast<std::int32_t>(fields.count("id"));
  token.content = fields.text("content");
  token.special = fields.flag("special") || is_chat_token(token.content);  // no message may write a turn
  token.single_word = fields.flag("single_word");
  token.lstrip = fields.flag("lstrip");
  token.rstrip = fields.flag("rstrip");
  token.normalized = fields.flag("normalized");
  fields.done();
  return token;
}

}  // namespace

void read_model(const json& value, const std::string& where, TokenizerParts& parts) {
  Fields fields(value, where);
  if (const std::string type = fields.text("type", "BPE"); type != "BPE") {
    fields.refuse(fmt::format("the type {} is not supported; llampi reads BPE", in_quotes(type)));
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!fields.text(name, "").empty()) fields.refuse(fmt::format("\"{}\" is not supported", name));
  }
  if (const json* dropout = fields.find("dropout"); dropout && *dropout != 0) {
    fields.refuse("\"dropout\" is not supported");
  }
  auto& model = parts.model;
  model.ignore_merges = fields.flag("ignore_merges", false);
  read_names(fields.object("vocab"), where, parts);
  model.vocabulary = vocabulary_of(parts);
  model.merges = MergeReader(where, parts).read(fields.list("merges"));
  read_unknown(fields, parts);
  fields.done();
  model.special.resize(parts.names.size());
}

/// Added tokens stand in the vocabulary or get the ids that follow it, in order: Hugging Face's library
/// numbers them itself, whatever the file says, so other numbers are a trap.
void read_added_tokens(const json& value, const std::string& where, TokenizerParts& parts) {
  if (!value.is_array()) throw_user_error("{} must be a list", where);
  Vocabulary ids;
  for (std::size_t id = 0; id < parts.names.size(); ++id) {
    if (!parts.names[id].empty()) ids.emplace(parts.names[id], static_cast<std::int32_t>(id));
  }
  Vocabulary seen;
  std::size_t next = parts.entries;
  for (const auto& entry : value) {
    AddedToken token = read_added_token(entry, fmt::format("{}[{}]", where, parts.added.size()));
    if (token.content.empty()) throw_user_error("{}: the token of id {} is empty", where, token.id);
    if (!seen.emplace(token.content, token.id).second) {
      throw_user_error("{}: {} stands there twice", where, in_quotes(token.content));
    }
    const auto known = ids.find(token.content);
    if (known != ids.end() && known->second != token.id) {
      throw_user_error("{}: {} has the id {}, but {} in the vocabulary", where, in_quotes(token.content),
                       token.id, known->second);
    }
    const auto at = static_cast<std::size_t>(token.id);
    if (known == ids.end()) {
      if (at != next || (at < parts.names.size() && !parts.names[at].empty())) {
        throw_user_error(
            "{}: {} has the id {}; tokens that the vocabulary does not have must be numbered in order after "
            "it, and the next number is {}",
            where, in_quotes(token.content), token.id, next);
      }
      parts.names.resize(std::max(at + 1, parts.names.size()));
      parts.names[at] = token.content;
      parts.model.special.resize(parts.names.size());
    }
    next = std::max(next, at + 1);
    if (token.special) parts.model.special[at] = true;
    parts.added.push_back(std::move(token));
  }
}

}  // namespace llampi::tokenizer
