// SPDX-License-Identifier: Apache-2.0
#include "infer/text_model.hpp"

#include <algorithm>
#include <limits>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/engine_weights.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"

namespace llampi::infer {
namespace {

namespace fs = std::filesystem;

void add_new(std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& more) {
  for (const auto id : more) {
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  }
}

/// As make_tokenizer() takes it.
std::string find_tokenizer(const fs::path& weights, const TextOptions& options, std::int64_t vocabulary) {
  if (!options.tokenizer.empty()) return options.tokenizer;
  std::vector<fs::path> folders = options.folders;
  folders.insert(folders.begin(), weights);
  for (const auto& folder : folders) {
    if (tokenizer::holds_tokenizer(folder)) return folder.string();
  }
  if (tokenizer::make_tokenizer("bytes")->vocabulary() == vocabulary) return "bytes";
  throw_user_error("no tokenizer is found for {}, which has a vocabulary of {}; name one with --tokenizer",
                   weights.string(), vocabulary);
}

/// What the files of the weights and of the tokenizer say, and the model's config.json in a checkpoint.
std::vector<std::int32_t> find_end_ids(const fs::path& weights, const std::string& model_config,
                                       const std::string& tokenizer) {
  if (tokenizer == "bytes") return {};  // the numbers are those of another tokenizer
  std::error_code ignored;
  auto ids = fs::is_directory(weights, ignored) ? tokenizer::end_ids_of(weights)
                                                : tokenizer::end_ids_in(model_config, weights.string());
  const fs::path path(tokenizer);
  add_new(ids, tokenizer::end_ids_of(fs::is_directory(path, ignored) ? path : path.parent_path()));
  return ids;
}

}  // namespace

TextModel TextModel::open(const fs::path& weights, const TextOptions& options, bool chat,
                          const std::string& today) {
  TextModel model;
  model.weights = weights;
  model.config = checkpoint::config_of_weights(weights);
  const auto name = find_tokenizer(weights, options, model.config.vocab_size);
  model.tokenizer = tokenizer::make_tokenizer(name);
  for (std::int32_t id = 0; id < model.config.vocab_size; ++id) {
    if (!model.tokenizer->has(id)) model.nameless.push_back(id);
  }
  model.end_ids = find_end_ids(weights, model.config.json, name);
  if (chat) {
    model.chat_template = tokenizer::choose_template(
        *model.tokenizer, {.name = options.chat_template,
                           .date = options.template_date,
                           .today = today,
                           .trained_with = checkpoint::trained_template(weights, options.adapter)});
  }
  return model;
}

std::vector<std::int32_t> TextModel::encode(const std::string& text) const {
  auto ids = tokenizer->encode(text);
  const auto begin = tokenizer->begin();
  if (begin && (ids.empty() || ids.front() != *begin)) ids.insert(ids.begin(), *begin);
  return ids;
}

std::vector<std::int32_t> TextModel::encode(const tokenizer::Conversation& conversation) const {
  return tokenizer::encode_chat(*tokenizer, chat_template, conversation, tokenizer::ChatPurpose::generation)
      .ids;
}

std::vector<std::int32_t> TextModel::stop_tokens(bool chat) const {
  std::vector<std::int32_t> stop;
  if (chat) stop = llampi::tokenizer::stop_tokens(*tokenizer, chat_template);
  if (const auto end = tokenizer->end()) add_new(stop, {*end});
  add_new(stop, end_ids);
  return stop;
}

void TextModel::require_known(const std::vector<std::int32_t>& tokens, const std::string& what) const {
  for (const auto id : tokens) {
    if (id < config.vocab_size) continue;
    throw_user_error(
        "{} has the token {}, but the vocabulary of {} ends at {}: its tokenizer {} belongs to another model; give the right "
        "one with --tokenizer",
        what, id, weights.string(), config.vocab_size - 1, tokenizer->name());
  }
}

std::int64_t TextModel::room(const std::vector<std::int32_t>& tokens, std::int64_t wanted,
                             const std::string& what) const {
  require_known(tokens, what);
  const auto room = config.max_position_embeddings - std::ssize(tokens);
  if (room < 1) {
    throw_user_error("{} has {}, but {} takes at most {}; shorten it", what,
                     count(std::ssize(tokens), "token"), weights.string(),
                     with_separators(config.max_position_embeddings));
  }
  return std::min(wanted, room);
}

void TextModel::forbid_nameless(std::vector<double>& logits) const {
  for (const auto id : nameless)
    logits.at(static_cast<std::size_t>(id)) = -std::numeric_limits<double>::infinity();
}

}  // namespace llampi::infer
