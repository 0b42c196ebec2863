#include "train/text_model.hpp"

#include <limits>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/core/error.hpp"
#include "train/session.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Tokenizer> find_tokenizer(const fs::path& weights, const TextOptions& options,
                                          std::int64_t vocabulary) {
  if (!options.tokenizer.empty()) return make_tokenizer(options.tokenizer);
  std::vector<fs::path> folders = options.folders;
  folders.insert(folders.begin(), weights);
  for (const auto& folder : folders) {
    if (holds_tokenizer(folder)) return make_tokenizer(folder.string());
  }
  auto bytes = make_tokenizer("bytes");
  if (bytes->vocabulary() == vocabulary) return bytes;
  throw_user_error("no tokenizer is found for {}, which has a vocabulary of {}; name one with --tokenizer",
                   weights.string(), vocabulary);
}

}  // namespace

TextModel TextModel::open(const fs::path& weights, const TextOptions& options, bool chat) {
  TextModel model;
  model.weights = weights;
  model.config = config_of_weights(weights);
  model.tokenizer = find_tokenizer(weights, options, model.config.vocab_size);
  if (chat) model.chat_template = choose_template(*model.tokenizer, options.chat_template);
  return model;
}

std::vector<std::int32_t> TextModel::encode(const std::string& text) const {
  auto ids = tokenizer->encode(text);
  const auto begin = tokenizer->begin();
  if (begin && (ids.empty() || ids.front() != *begin)) ids.insert(ids.begin(), *begin);
  return ids;
}

std::vector<std::int32_t> TextModel::encode(const Conversation& conversation) const {
  return encode_chat(*tokenizer, chat_template, conversation, ChatPurpose::generation).ids;
}

std::vector<std::int32_t> TextModel::stop_tokens(bool chat) const {
  if (chat) return llampi::stop_tokens(*tokenizer, chat_template);
  const auto end = tokenizer->end();
  return end ? std::vector{*end} : std::vector<std::int32_t>();
}

std::int64_t TextModel::room(const std::vector<std::int32_t>& tokens, std::int64_t wanted,
                             const std::string& what) const {
  for (const auto id : tokens) {
    if (id < config.vocab_size) continue;
    throw_user_error(
        "{} has the token {}, but the vocabulary of {} ends at {}: the tokenizer {} is another's", what, id,
        weights.string(), config.vocab_size - 1, tokenizer->name());
  }
  const auto room = config.max_position_embeddings - std::ssize(tokens);
  if (room < 1) {
    throw_user_error("{} has {} tokens, and {} takes {} in all; shorten it", what, tokens.size(),
                     weights.string(), config.max_position_embeddings);
  }
  return std::min(wanted, room);
}

void TextModel::forbid_nameless(std::vector<double>& logits) const {
  for (auto id = tokenizer->vocabulary(); id < std::ssize(logits); ++id)
    logits[static_cast<std::size_t>(id)] = -std::numeric_limits<double>::infinity();
}

}  // namespace llampi
