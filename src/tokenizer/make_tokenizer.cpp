// SPDX-License-Identifier: Apache-2.0
#include "llampi/tokenizer/make_tokenizer.hpp"

#include <libdeflate.h>

#include <algorithm>
#include <functional>

#include "llampi/core/error.hpp"
#include "llampi/io/folders.hpp"
#include "llampi/io/posix_file.hpp"
#include "tokenizer/files.hpp"

namespace llampi::tokenizer {
namespace {

namespace fs = std::filesystem;

class ByteTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  std::int64_t vocabulary() const override { return 256; }
  bool takes_any_bytes() const override { return true; }
  bool encodes_piecewise() const override { return true; }

  std::vector<std::int32_t> encode(std::string_view text, SpecialText, TextStart) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const auto id : ids) {
      if (id < 0 || id >= vocabulary()) {
        throw_user_error("token {} cannot be turned into text: the tokenizer \"bytes\" has the ids 0 to 255",
                         id);
      }
      text.push_back(static_cast<char>(id));
    }
    return text;
  }

  std::string bytes_of(std::int32_t id) const override { return decode({&id, 1}); }
  std::optional<std::int32_t> find(std::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token.front());
  }
  bool is_special(std::int32_t) const override { return false; }
  std::optional<std::int32_t> begin() const override { return std::nullopt; }
  std::optional<std::int32_t> end() const override { return std::nullopt; }
};

TokenizerNeighbours neighbours(const fs::path& folder) {
  const auto read = [&](const char* name) -> std::optional<TokenizerNeighbours::File> {
    std::error_code ignored;
    if (!fs::exists(folder / name, ignored)) return std::nullopt;
    return TokenizerNeighbours::File{(folder / name).string(), io::read_whole(folder / name)};
  };
  return {.tokenizer_config = read("tokenizer_config.json"),
          .special_tokens_map = read("special_tokens_map.json"),
          .generation_config = read("generation_config.json"),
          .config = read("config.json"),
          .added_tokens = read("added_tokens.json"),
          .chat_template = read("chat_template.jinja")};
}

/// The tokenizer's own file in a folder; empty if there is none.
fs::path file_in(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(folder / name, ignored)) return folder / name;
  }
  return {};
}

/// Lines of a token in base64 and its rank.
bool is_tiktoken(std::string_view contents) {
  const auto line = contents.substr(0, contents.find('\n'));
  const auto space = line.find(' ');
  if (space == line.npos || space == 0 || space + 1 == line.size()) return false;
  const auto all = [](std::string_view text, auto test) {
    return std::all_of(text.begin(), text.end(), test);
  };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return all(line.substr(space + 1), is_digit) && all(line.substr(0, space), [&](char c) {
           return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '/' ||
                  c == '=';
         });
}

/// @param text_of an id; empty: it does not count
std::string hash_of_ids(const Tokenizer& tokenizer, std::int64_t ids,
                        const std::function<std::string(std::int32_t)>& text_of) {
  require(ids >= 0 && ids <= tokenizer.vocabulary(), "ids of a vocabulary's hash");
  std::uint32_t crc = 0;
  const auto end = static_cast<std::int32_t>(ids == 0 ? tokenizer.vocabulary() : ids);
  for (std::int32_t id = 0; id < end; ++id) {
    const auto text = text_of(id);
    crc = libdeflate_crc32(crc, text.data(), text.size());
  }
  return fmt::format("{:08x}", crc);
}

}  // namespace

bool holds_tokenizer(const fs::path& folder) { return !file_in(folder).empty(); }

ChatTemplateText chat_template_in(const fs::path& folder) {
  return chat_template_of(neighbours(folder)).value_or(ChatTemplateText());
}

std::string vocabulary_hash(const Tokenizer& tokenizer, std::int64_t ids) {
  return hash_of_ids(tokenizer, ids, [&](std::int32_t id) {
    const auto bytes = tokenizer.bytes_of(id);
    return fmt::format("{}:", bytes.size()) + bytes;
  });
}

std::string ordinary_hash(const Tokenizer& tokenizer, std::int64_t ids) {
  return hash_of_ids(tokenizer, ids, [&](std::int32_t id) {
    if (tokenizer.is_added(id)) return std::string();
    const auto bytes = tokenizer.bytes_of(id);
    return fmt::format("{}:{}:", id, bytes.size()) + bytes;
  });
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  std::error_code ignored;
  if (!fs::exists(name, ignored)) {
    throw_user_error(
        "the tokenizer \"{}\" does not exist; give a tokenizer.json, a tokenizer.model, the folder of one, "
        "or \"bytes\"{}",
        name, io::hub_advice(name));
  }
  const fs::path file = fs::is_directory(name, ignored) ? file_in(name) : fs::path(name);
  if (file.empty()) throw_user_error("the folder {} has neither tokenizer.json nor tokenizer.model", name);
  const bool is_json = file.extension() == ".json";
  if (!is_json && file.extension() != ".model") {
    throw_user_error(
        "the tokenizer \"{}\" must be a file tokenizer.json or tokenizer.model, or the folder of one", name);
  }
  const std::string contents = io::read_whole(file);
  if (!is_json && is_tiktoken(contents)) {
    throw_user_error(
        "{} is Meta's own file of Llama 3's tokenizer (tiktoken), which is not read: give the "
        "tokenizer.json of the model's Hugging Face folder",
        file.string());
  }
  auto tokenizer =
      is_json ? parse_tokenizer_json(contents, file.string()) : parse_sentencepiece(contents, file.string());
  apply_neighbours(*tokenizer, neighbours(file.parent_path()));
  return tokenizer;
}

}  // namespace llampi::tokenizer
