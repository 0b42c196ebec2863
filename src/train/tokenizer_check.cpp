#include "train/tokenizer_check.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/core/error.hpp"
#include "llampi/data/tokenizer.hpp"
#include "train/data_content.hpp"
#include "train/run_text.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

/// Something that is in a tokenizer's ids.
struct Speaker {
  std::string what;             ///< "data.train = train.h5"
  std::string tokenizer;        ///< as Tokenizer::name(); empty: unknown
  std::int64_t vocabulary = 0;  ///< 0: unknown
  /// vocabulary_hash() of the first ids; empty where it is unknown.
  std::function<std::string(std::int64_t ids)> hash = nullptr;
};

Speaker file_speaker(const char* key, const TokenFile* file) {
  if (file == nullptr) return {};
  const auto known = [file](std::int64_t ids) {
    return ids == file->vocabulary() ? file->notes().tokenizer_hash : "";
  };
  return {fmt::format("{} = {}", key, file->path().string()), file->tokenizer(), file->vocabulary(), known};
}

/// Of a folder that may hold a tokenizer.
Speaker folder_speaker(const char* key, const fs::path& folder, const Log& log) {
  if (!holds_tokenizer(folder)) return {};
  try {
    const std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer(folder.string());
    const auto known = [tokenizer](std::int64_t ids) {
      return 0 < ids && ids <= tokenizer->vocabulary() ? vocabulary_hash(*tokenizer, ids) : "";
    };
    return {fmt::format("{} = {}", key, folder.string()), tokenizer->name(), tokenizer->vocabulary(), known};
  } catch (const UserError& error) {
    log.info("whether the data fit the tokenizer of {} is not known: {}", folder.string(), error.what());
    return {};
  }
}

/// Of the model itself, whose embeddings have learnt these ids.
Speaker weights_speaker(const fs::path& weights, const Log& log) {
  std::error_code ignored;
  if (weights == "random") return {};
  if (fs::is_directory(weights, ignored)) return folder_speaker("model.weights", weights, log);
  const auto run = read_run_text(read_checkpoint_summary(weights).texts.run_config);
  return {fmt::format("model.weights = {}", weights.string()), tokenizer_in(run.note("data.train"))};
}

enum class Mismatch : std::uint8_t { refused_if_sure, warned };

/// Whether the data are in the other's tokens; nothing where only names can be compared. Bytes are also the
/// first ids of many a BPE, which has learnt to read longer ones.
std::optional<bool> fits(const Speaker& data, const Speaker& other) {
  if ((data.tokenizer == "bytes") != (other.tokenizer == "bytes")) return false;
  if (data.hash && other.hash) {
    const auto here = data.hash(data.vocabulary), there = other.hash(data.vocabulary);
    if (!here.empty() && !there.empty()) return here == there;
  }
  if (data.tokenizer == other.tokenizer) return true;
  return std::nullopt;
}

void compare(const Speaker& data, const Speaker& other, Mismatch mismatch, const Log& log) {
  if (data.tokenizer.empty() || other.tokenizer.empty()) return;
  const auto fit = fits(data, other);
  if (fit == true) return;
  const auto sentence =
      fmt::format("{} was made with the tokenizer {}, but {} has {}", data.what, data.tokenizer, other.what,
                  data.tokenizer == other.tokenizer ? "another one of that name" : other.tokenizer);
  if (fit == false && mismatch == Mismatch::refused_if_sure)
    throw_user_error("{}: their ids mean different texts; tokenize again with the right --tokenizer",
                     sentence);
  log.warning("{}; the same ids must mean the same texts", sentence);
}

}  // namespace

void check_tokenizers(const Config& config, const Inputs& inputs, const fs::path& weights, const Log& log) {
  const Speaker train = file_speaker("data.train", inputs.train_file.get());
  const Speaker eval = file_speaker("data.eval", inputs.eval_file.get());
  compare(eval, train, Mismatch::refused_if_sure, log);
  const Speaker model = weights_speaker(weights, log);
  if (!model.tokenizer.empty()) return compare(train, model, Mismatch::refused_if_sure, log);
  std::error_code ignored;
  const fs::path path = config.model.config;
  const fs::path folder = fs::is_directory(path, ignored) ? path : path.parent_path();
  compare(train, folder_speaker("model.config", folder, log), Mismatch::warned, log);
}

}  // namespace llampi
