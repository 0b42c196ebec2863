// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: what stands around the model.
#include <array>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/tokenizer/utf8.hpp"
#include "tokenizer/fields.hpp"
#include "tokenizer/json.hpp"

namespace llampi::tokenizer {
namespace {

using nlohmann::json;

// What ByteLevel cuts a text with unless use_regex is false: GPT-2's words.
constexpr std::string_view kByteLevelWords =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int kMaxNesting = 8;  // of sequences; real files have one
// Of each kind; real files have a few. A text may grow a little with each, and pre-tokenizers call each
// other.
constexpr std::size_t kMaxSteps = 32;

/// "tokenizer.json: decoder (Strip)", to complain with.
std::string with_type(const std::string& where, const std::string& type) { return where + " (" + type + ")"; }

[[noreturn]] void refuse_type(const std::string& where, const std::string& type) {
  throw_user_error("{}: the type {} is not supported", where, in_quotes(type));
}

/// Before another one is read.
void require_few_steps(std::size_t steps, const std::string& where) {
  if (steps >= kMaxSteps) throw_user_error("{}: more than {} such steps are not supported", where, kMaxSteps);
}

/// Calls read(entry, where) for each entry of the list `name`.
template <class Read>
void read_sequence(Fields& fields, const char* name, const std::string& where, int depth, const Read& read) {
  if (depth >= kMaxNesting) fields.refuse("more than 8 sequences stand within each other");
  std::size_t number = 0;
  for (const auto& entry : fields.list(name)) read(entry, fmt::format("{}[{}]", where, number++), depth + 1);
}

Regex read_pattern(Fields& fields) {
  Fields pattern(fields.get("pattern"), fields.where() + ".pattern");
  const bool literal = pattern.find("String") != nullptr;
  const std::string text = pattern.text(literal ? "String" : "Regex");
  pattern.done();
  if (text.empty()) pattern.refuse("the pattern is empty");
  return literal ? Regex::literal(text, pattern.where()) : Regex(text, pattern.where());
}

char32_t read_character(Fields& fields, const char* name) {
  const std::string text = fields.text(name);
  if (text.empty() || character_bytes(text[0]) != text.size()) {
    fields.refuse(fmt::format("\"{}\" must be one character", name));
  }
  return first_character(text);
}

Replace read_replace(Fields& fields) {
  Regex pattern = read_pattern(fields);
  return {std::move(pattern), fields.text("content")};
}

void read_normalizer_at(const json& value, const std::string& where, int depth, TokenizerParts& parts) {
  require_few_steps(parts.normalizers.size(), where);
  Fields fields(value, where);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    read_sequence(fields, "normalizers", where, depth,
                  [&](const json& entry, const std::string& at, int next) {
                    read_normalizer_at(entry, at, next, parts);
                  });
  } else if (type == "Prepend") {
    parts.normalizers.emplace_back(Prepend{fields.text("prepend")});
  } else if (type == "Replace") {
    parts.normalizers.emplace_back(read_replace(fields));
  } else if (type == "NFC") {
    parts.normalizers.emplace_back(Compose{});
  } else {
    refuse_type(where, type);
  }
  fields.done();
}

Split::Behavior read_behavior(Fields& fields) {
  using enum Split::Behavior;
  static constexpr std::array<std::pair<std::string_view, Split::Behavior>, 5> kBehaviors{
      {{"Removed", removed},
       {"Isolated", isolated},
       {"MergedWithPrevious", merged_with_previous},
       {"MergedWithNext", merged_with_next},
       {"Contiguous", contiguous}}};
  const std::string name = fields.text("behavior");
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) return behavior;
  }
  fields.refuse(fmt::format("the behavior {} is not supported", in_quotes(name)));
}

void read_byte_level(Fields& fields, TokenizerParts& parts) {
  if (fields.flag("add_prefix_space")) parts.pre_tokenizers.emplace_back(AddPrefix{" ", false});
  if (fields.flag("use_regex", true)) {
    parts.pre_tokenizers.emplace_back(
        Split{Regex(kByteLevelWords, fields.where()), Split::Behavior::isolated});
  }
  fields.ignore("trim_offsets");  // positions in the text, which nobody asks for here
  parts.model.words_are_bytes = true;
}

/// "always", "first" or "never"; older files have add_prefix_space instead.
std::string read_prepend_scheme(Fields& fields) {
  const bool prefix = fields.flag("add_prefix_space", true);
  const std::string scheme = fields.text("prepend_scheme", prefix ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    fields.refuse(fmt::format("the prepend_scheme {} is not supported", in_quotes(scheme)));
  }
  if (!prefix && scheme != "never")
    fields.refuse("\"add_prefix_space\" and \"prepend_scheme\" contradict each other");
  fields.ignore("str_rep");
  return scheme;
}

void read_metaspace(Fields& fields, TokenizerParts& parts) {
  std::string replacement;
  append_character(replacement, read_character(fields, "replacement"));
  const std::string scheme = read_prepend_scheme(fields);
  parts.pre_tokenizers.emplace_back(ReplaceSpaces{replacement});
  if (scheme == "first" && !parts.normalizers.empty()) {
    fields.refuse("the prepend_scheme \"first\" together with a normalizer is not supported");
  }
  if (scheme != "never") parts.pre_tokenizers.emplace_back(AddPrefix{replacement, scheme == "first"});
  if (fields.flag("split", true)) {
    parts.pre_tokenizers.emplace_back(
        Split{Regex::literal(replacement, fields.where()), Split::Behavior::merged_with_next});
  }
}

void read_pre_tokenizer_at(const json& value, const std::string& where, int depth, TokenizerParts& parts) {
  require_few_steps(parts.pre_tokenizers.size(), where);
  if (parts.model.words_are_bytes)
    throw_user_error("{}: a pre-tokenizer after ByteLevel is not supported", where);
  Fields fields(value, where);
  const std::string type = fields.text("type");
  Fields here(value, with_type(where, type));
  here.ignore("type");
  if (type == "Sequence") {
    read_sequence(here, "pretokenizers", where, depth,
                  [&](const json& entry, const std::string& at, int next) {
                    read_pre_tokenizer_at(entry, at, next, parts);
                  });
  } else if (type == "Split") {
    Regex pattern = read_pattern(here);
    const auto behavior = read_behavior(here);
    parts.pre_tokenizers.emplace_back(Split{std::move(pattern), behavior, here.flag("invert", false)});
  } else if (type == "ByteLevel") {
    read_byte_level(here, parts);
  } else if (type == "Digits") {
    const auto behavior =
        here.flag("individual_digits", false) ? Split::Behavior::isolated : Split::Behavior::contiguous;
    parts.pre_tokenizers.emplace_back(Split{Regex::digits(), behavior});
  } else if (type == "Metaspace") {
    read_metaspace(here, parts);
  } else {
    refuse_type(where, type);
  }
  here.done();
}

void read_decoder_at(const json& value, const std::string& where, int depth, TokenizerParts& parts) {
  require_few_steps(parts.decoders.size(), where);
  Fields fields(value, where);
  const std::string type = fields.text("type");
  Fields here(value, with_type(where, type));
  here.ignore("type");
  auto& decoders = parts.decoders;
  if (type == "Sequence") {
    read_sequence(here, "decoders", where, depth, [&](const json& entry, const std::string& at, int next) {
      read_decoder_at(entry, at, next, parts);
    });
  } else if (type == "ByteLevel") {
    for (const char* name : {"add_prefix_space", "trim_offsets", "use_regex"}) here.ignore(name);
    decoders.emplace_back(DecodeByteLevel{});
  } else if (type == "Replace") {
    decoders.emplace_back(read_replace(here));
  } else if (type == "ByteFallback") {
    decoders.emplace_back(DecodeByteFallback{});
  } else if (type == "Fuse") {
    decoders.emplace_back(DecodeFuse{});
  } else if (type == "Strip") {
    const auto content = read_character(here, "content");
    const auto start = static_cast<std::size_t>(here.count("start"));
    decoders.emplace_back(DecodeStrip{content, start, static_cast<std::size_t>(here.count("stop"))});
  } else if (type == "Metaspace") {
    const auto replacement = read_character(here, "replacement");
    here.ignore("split");
    decoders.emplace_back(DecodeMetaspace{replacement, read_prepend_scheme(here) != "never"});
  } else {
    refuse_type(where, type);
  }
  here.done();
}

/// The ids that a special token of a template stands for.
std::vector<std::int32_t> ids_of(const std::string& name, const json& specials, const std::string& where,
                                 const TokenizerParts& parts) {
  const auto found = specials.find(name);
  if (found == specials.end())
    throw_user_error("{}: the template names {}, which special_tokens does not have", where, in_quotes(name));
  Fields special(*found, where + ".special_tokens");
  std::vector<std::int32_t> ids;
  for (const auto& id : special.list("ids")) {
    const bool known = id.is_number_unsigned() && id.get<std::uint64_t>() < parts.names.size();
    if (!known) special.refuse(fmt::format("{} has an id that the tokenizer does not have", in_quotes(name)));
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

void read_template(Fields& fields, TokenizerParts& parts) {
  const json& specials = fields.object("special_tokens");
  std::array<std::vector<std::int32_t>, 2> around;
  bool behind = false;
  for (const auto& entry : fields.list("single")) {
    Fields piece(entry, fields.where() + ".single");
    if (piece.find("Sequence")) {
      if (behind) piece.refuse("the text stands in it twice, which is not supported");
      behind = true;
    } else {
      const std::string name = Fields(piece.get("SpecialToken"), piece.where()).text("id");
      const auto ids = ids_of(name, specials, fields.where(), parts);
      auto& side = around[behind ? 1 : 0];
      side.insert(side.end(), ids.begin(), ids.end());
    }
    piece.done();
  }
  if (!behind) fields.refuse("the template of a single text does not have the text");
  if (around[0].size() > 1 || around[1].size() > 1) {
    fields.refuse("more than one special token before or after a text is not supported");
  }
  if (!around[0].empty()) parts.begin = around[0][0];
  if (!around[1].empty()) parts.end = around[1][0];
  fields.ignore("pair");
}

void read_post_processor_at(const json& value, const std::string& where, int depth, TokenizerParts& parts) {
  Fields fields(value, where);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    read_sequence(fields, "processors", where, depth,
                  [&](const json& entry, const std::string& at, int next) {
                    read_post_processor_at(entry, at, next, parts);
                  });
  } else if (type == "TemplateProcessing") {
    if (parts.begin || parts.end) fields.refuse("a second template is not supported");
    read_template(fields, parts);
  } else if (type == "ByteLevel") {  // changes positions only
    for (const char* name : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.ignore(name);
  } else {
    refuse_type(where, type);
  }
  fields.done();
}

}  // namespace

void read_normalizer(const json& value, const std::string& where, TokenizerParts& parts) {
  read_normalizer_at(value, where, 0, parts);
}

void read_pre_tokenizer(const json& value, const std::string& where, TokenizerParts& parts) {
  read_pre_tokenizer_at(value, where, 0, parts);
}

void read_decoder(const json& value, const std::string& where, TokenizerParts& parts) {
  read_decoder_at(value, where, 0, parts);
}

void read_post_processor(const json& value, const std::string& where, TokenizerParts& parts) {
  read_post_processor_at(value, where, 0, parts);
}

TokenizerParts parse_parts(std::string_view text, const std::string& source) {
  const json file = parse_object(text, source);
  Fields fields(file, source);
  TokenizerParts parts;
  if (const std::string version = fields.text("version", "1.0"); version != "1.0") {
    fields.refuse(fmt::format("the version {} is not supported", in_quotes(version)));
  }
  // How long a sequence may get is for those to say who make sequences.
  fields.ignore("truncation");
  fields.ignore("padding");
  const auto read = [&](const char* name, const auto& reader) {
    if (const json* value = fields.find(name)) reader(*value, source + ": " + name, parts);
  };
  read("normalizer", read_normalizer);
  read("pre_tokenizer", read_pre_tokenizer);
  read("decoder", read_decoder);
  read_model(fields.get("model"), source + ": model", parts);
  read("added_tokens", read_added_tokens);
  read("post_processor", read_post_processor);
  fields.done();
  return parts;
}

}  // namespace llampi::tokenizer
