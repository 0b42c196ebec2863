// SPDX-License-Identifier: Apache-2.0
#include "llampi/infer/generate.hpp"

#include <sstream>

#include "infer/continuation.hpp"
#include "infer/sampling.hpp"
#include "infer/text_model.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/philox.hpp"
#include "llampi/core/text.hpp"
#include "llampi/infer/session.hpp"

namespace llampi::infer {
namespace {

tokenizer::Conversation conversation(const GenerateOptions& options) {
  tokenizer::Conversation result;
  if (!options.system.empty()) result.push_back({tokenizer::ChatRole::system, options.system});
  result.push_back({tokenizer::ChatRole::user, options.prompt});
  return result;
}

/// Tokens given by name or id, separated by spaces. A number is an id, though most vocabularies have digits.
std::vector<std::int32_t> tokens_named(const std::string& names, const tokenizer::Tokenizer& tokenizer) {
  std::vector<std::int32_t> tokens;
  std::istringstream words(names);
  for (std::string word; words >> word;) {
    auto id = parse_number<std::int32_t>(word);
    if (!id) id = tokenizer.find(word);
    if (!id || *id < 0 || *id >= tokenizer.vocabulary())
      throw_user_error("--stop has \"{}\", which {} does not have", word, tokenizer.name());
    tokens.push_back(*id);
  }
  return tokens;
}

/// What is written as it comes: an answer begins with its first character that is no white space.
class Writer {
 public:
  Writer(const tokenizer::Tokenizer& tokenizer, bool trims,
         const std::function<void(const std::string&)>& emit)
      : tokenizer_(tokenizer), trims_(trims), emit_(emit) {}

  void add(std::int32_t token) {
    std::string piece = tokenizer_.bytes_of(token);
    if (trims_ && text_.empty()) piece.erase(0, piece.find_first_not_of(" \t\r\n"));
    text_ += piece;
    if (emit_ && !piece.empty()) emit_(piece);
  }
  const std::string& text() const { return text_; }

 private:
  const tokenizer::Tokenizer& tokenizer_;
  const bool trims_;
  const std::function<void(const std::string&)> emit_;
  std::string text_;
};

}  // namespace

Generation generate(comm::World& world, const std::filesystem::path& weights, const GenerateOptions& options,
                    const std::function<void(const std::string&)>& emit, const Log& log) {
  TextModel model;
  Beginning beginning;
  std::vector<std::int32_t> stop;
  const std::string today = world.broadcast(tokenizer::date_of_today(), 0);
  comm::agree(world, [&] {
    if (options.max_tokens < 1 || options.max_tokens > kMostTokensToGenerate) {
      throw_user_error("--max-tokens must be from 1 to {}, not {}", kMostTokensToGenerate,
                       options.max_tokens);
    }
    if (tokenizer::strip(options.prompt).empty() && (options.chat || options.prompt.empty()))
      throw_user_error("--prompt is empty; give at least one character to continue");
    model = TextModel::open(weights, options.text, options.chat, today);
    beginning.tokens = options.chat ? model.encode(conversation(options)) : model.encode(options.prompt);
    if (beginning.tokens.empty()) {
      throw_user_error("--prompt has nothing that is a token of {}; give something to continue",
                       model.tokenizer->name());
    }
    beginning.most = model.room(beginning.tokens, options.max_tokens, "--prompt");
    stop = model.stop_tokens(options.chat);
    const auto named = tokens_named(options.stop, *model.tokenizer);
    model.require_known(named, "--stop");
    stop.insert(stop.end(), named.begin(), named.end());
  });
  const auto length = std::ssize(beginning.tokens) + beginning.most;
  const auto session = open_for_inference(world, weights, generation_shape(length), options.compute, log,
                                          options.text.adapter);

  const RandomStream random(options.seed, "generate");
  const auto choose = [&](std::vector<double>& logits, std::int64_t index) {
    model.forbid_nameless(logits);
    const double uniform = static_cast<double>(random.bits(index) >> 11) * 0x1p-53;
    return draw(logits, options.temperature, options.top_p, uniform);
  };
  Writer writer(*model.tokenizer, options.chat, world.rank() == 0 ? emit : nullptr);
  const auto made = continue_sequence(world, *session.engine, beginning, stop, choose,
                                      [&](std::int32_t token) { writer.add(token); });
  std::string warning;
  if (!made.stopped && beginning.most < options.max_tokens) {
    warning = fmt::format("the text ends after {}: max_position_embeddings is {}",
                          count(beginning.most, "token"), model.config.max_position_embeddings);
  }
  return {.completion = std::string(options.chat ? tokenizer::strip(writer.text()) : writer.text()),
          .tokens = std::ssize(made.tokens),
          .stopped = made.stopped,
          .warning = std::move(warning)};
}

}  // namespace llampi::infer
