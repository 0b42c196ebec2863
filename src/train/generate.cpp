#include <algorithm>
#include <cmath>
#include <numeric>

#include "llampi/core/philox.hpp"
#include "llampi/data/tokenizer.hpp"
#include "train/continuation.hpp"
#include "train/session.hpp"

namespace llampi {
namespace {

/// Draws from softmax(logits / temperature), cut to the smallest set of most likely tokens whose probability
/// reaches top_p (nucleus sampling: Holtzman et al., arXiv 1904.09751). `uniform` is in [0, 1).
std::int32_t draw(const std::vector<double>& logits, double temperature, double top_p, double uniform) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  if (temperature <= 0) return order.front();

  std::vector<double> weights(order.size());
  double total = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    weights[i] = std::exp((logits[order[i]] - logits[order.front()]) / temperature);
    total += weights[i];
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < order.size() && (count == 0 || kept < top_p * total)) kept += weights[count++];

  double target = uniform * kept;
  for (std::size_t i = 0; i < count; ++i) {
    target -= weights[i];
    if (target < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace

std::string generate(World& world, const std::filesystem::path& weights, const GenerateOptions& options,
                     const std::function<void(const std::string&)>& emit, const Log& log) {
  LlamaConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::int32_t> tokens;
  agree(world, [&] {
    config = config_of_weights(weights);
    tokenizer = make_tokenizer("bytes");
    if (config.vocab_size != tokenizer->vocabulary()) {
      throw_user_error("{} has a vocabulary of {}; only models over bytes (256) can generate so far",
                       weights.string(), config.vocab_size);
    }
    if (options.max_tokens < 1 || options.max_tokens > kMostTokensToGenerate) {
      throw_user_error("--max-tokens must be from 1 to {}, not {}", kMostTokensToGenerate,
                       options.max_tokens);
    }
    tokens = tokenizer->encode(options.prompt);
    if (tokens.empty()) throw_user_error("--prompt is empty; give at least one character to continue");
    if (std::ssize(tokens) >= config.max_position_embeddings) {
      throw_user_error("--prompt has {} tokens, and {} takes {} in all; shorten it", tokens.size(),
                       weights.string(), config.max_position_embeddings);
    }
  });
  const auto room = config.max_position_embeddings - static_cast<std::int64_t>(tokens.size());
  const std::int64_t more = std::min(options.max_tokens, room);
  if (more < options.max_tokens)
    log.warning("the text ends after {} tokens: max_position_embeddings is {}", more,
                config.max_position_embeddings);
  const auto session =
      open_for_inference(world, weights, generation_shape(static_cast<std::int64_t>(tokens.size()) + more),
                         options.compute, log);

  const RandomStream random(options.seed, "generate");
  std::string text = options.prompt;
  Continuation continuation(*session.engine);
  for (std::int64_t i = 0; i < more; ++i) {
    const auto logits = continuation.feed(tokens);
    const double uniform = static_cast<double>(random.bits(i) >> 11) * 0x1p-53;
    tokens = {draw(logits, options.temperature, options.top_p, uniform)};
    const std::string piece = tokenizer->decode(tokens);
    text += piece;
    if (world.rank() == 0 && emit) emit(piece);
  }
  return text;
}

}  // namespace llampi
