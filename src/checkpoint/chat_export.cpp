// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/chat_export.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/tokenizer/chat.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// The object in a file that another part has read before; an empty one if there is no such file.
Json read_object(const fs::path& file) {
  return is_there(file) ? Json::parse(io::read_whole(file)) : Json::object();
}

void write_object(const fs::path& file, const Json& object) { io::write_whole(file, object.dump(2) + "\n"); }

void write_template(const fs::path& folder, const std::string& chat_template,
                    const tokenizer::Tokenizer& tokenizer) {
  Json config = read_object(folder / "tokenizer_config.json");
  const auto name_token = [&](const char* key, std::optional<std::int32_t> id) {
    if (id && (!config.contains(key) || config[key].is_null())) config[key] = tokenizer.bytes_of(*id);
  };
  name_token("bos_token", tokenizer.bos_token());
  name_token("eos_token", tokenizer.end());
  config["chat_template"] = chat_template;
  write_object(folder / "tokenizer_config.json", config);
  if (is_there(folder / "chat_template.jinja"))
    io::write_whole(folder / "chat_template.jinja", chat_template);
}

/// Those of config.json first, in its order.
std::vector<std::int32_t> end_ids(const fs::path& folder, const std::string& config,
                                  const tokenizer::Tokenizer& tokenizer,
                                  const tokenizer::ChatTemplate& chat_template) {
  auto ids = tokenizer::end_ids_in(config, "config.json");
  const auto add = [&](std::int32_t id) {
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  };
  for (const auto id : tokenizer::end_ids_of(folder)) add(id);
  if (const auto end = tokenizer.end()) add(*end);
  for (const auto id : tokenizer::stop_tokens(tokenizer, chat_template)) add(id);
  return ids;
}

/// Template and end tokens, for a tokenizer that is there.
std::string add_chat(const fs::path& folder, const std::string& chat_template, const std::string& config,
                     const Log& log) {
  const auto tokenizer = tokenizer::make_tokenizer(folder.string());
  const auto known = tokenizer::recognise_template(chat_template);
  if (!known) {
    write_template(folder, chat_template, *tokenizer);
    log.warning(
        "chat template: the one of the training data, which llampi does not know; \"eos_token_id\" in "
        "config.json and generation_config.json must name the token that ends an answer");
    return config;
  }
  const auto chosen = tokenizer::choose_template(*tokenizer, {.name = known->name});
  write_template(folder, chat_template, *tokenizer);
  const auto ids = end_ids(folder, config, *tokenizer, chosen);
  Json model = Json::parse(config);
  Json generation = read_object(folder / "generation_config.json");
  if (const auto begin = tokenizer->bos_token(); begin && !generation.contains("bos_token_id"))
    generation["bos_token_id"] = *begin;
  model["eos_token_id"] = generation["eos_token_id"] = ids.size() == 1 ? Json(ids.front()) : Json(ids);
  write_object(folder / "generation_config.json", generation);
  std::vector<std::string> ends;
  for (const auto id : ids) ends.push_back(tokenizer->decode(std::vector{id}));
  log.info("chat template: {}; a text ends at {}", known->name, fmt::join(ends, " or "));
  return model.dump(2) + "\n";
}

}  // namespace

std::string export_chat(const fs::path& folder, const std::string& chat_template, const std::string& config,
                        const Log& log) {
  if (chat_template.empty()) return config;
  if (!tokenizer::holds_tokenizer(folder)) {
    io::write_whole(folder / "chat_template.jinja", chat_template);
    log.warning(
        "the chat template is in chat_template.jinja; without the tokenizer \"eos_token_id\" cannot name the "
        "token that ends an answer");
    return config;
  }
  try {
    return add_chat(folder, chat_template, config, log);
  } catch (const UserError& error) {  // the weights are written; they are of use without
    log.warning("the chat template of the training data is not in the folder: {}", error.what());
    return config;
  }
}

}  // namespace llampi::checkpoint
