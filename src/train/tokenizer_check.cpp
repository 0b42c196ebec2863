// SPDX-License-Identifier: Apache-2.0
#include "train/tokenizer_check.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/core/error.hpp"
#include "llampi/data/content.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"
#include "llampi/train/run_text.hpp"

namespace llampi::train {
namespace {

namespace fs = std::filesystem;

/// Of the first ids of a tokenizer; empty where it is unknown.
using HashOfIds = std::function<std::string(std::int64_t ids)>;

/// Something that is in a tokenizer's ids.
struct Speaker {
  std::string what;              ///< "data.train = train.h5"
  std::string tokenizer;         ///< as Tokenizer::name(); empty: unknown
  std::int64_t vocabulary = 0;   ///< 0: unknown
  HashOfIds hash = nullptr;      ///< vocabulary_hash()
  HashOfIds ordinary = nullptr;  ///< ordinary_hash(), where there is the other
};

/// What gives a path: a key, or an option.
std::string given(const char* key, const fs::path& path) {
  const bool is_option = std::string_view(key).starts_with("--");
  return fmt::format("{}{}{}", key, is_option ? " " : " = ", path.string());
}

Speaker file_speaker(const char* key, const data::TokenFile* file) {
  if (file == nullptr) return {};
  const auto known = [file](std::string data::TokenFileNotes::*hash) {
    return [file, hash](std::int64_t ids) { return ids == file->vocabulary() ? file->notes().*hash : ""; };
  };
  return {given(key, file->path()), file->tokenizer(), file->vocabulary(),
          known(&data::TokenFileNotes::tokenizer_hash), known(&data::TokenFileNotes::ordinary_hash)};
}

/// Of a folder that may hold a tokenizer.
Speaker folder_speaker(const char* key, const fs::path& folder, const Log& log) {
  if (!tokenizer::holds_tokenizer(folder)) return {};
  try {
    const std::shared_ptr<const tokenizer::Tokenizer> tokenizer = tokenizer::make_tokenizer(folder.string());
    const auto known = [tokenizer](std::string (*hash)(const tokenizer::Tokenizer&, std::int64_t)) {
      return [tokenizer, hash](std::int64_t ids) {
        return 0 < ids && ids <= tokenizer->vocabulary() ? hash(*tokenizer, ids) : "";
      };
    };
    return {given(key, folder), tokenizer->name(), tokenizer->vocabulary(), known(tokenizer::vocabulary_hash),
            known(tokenizer::ordinary_hash)};
  } catch (const UserError& error) {
    log.info("whether the data fit the tokenizer of {} is not known: {}", folder.string(), error.what());
    return {};
  }
}

/// Of the model itself, whose embeddings have learnt these ids.
Speaker weights_speaker(const char* key, const fs::path& weights, const Log& log) {
  std::error_code ignored;
  if (fs::is_directory(weights, ignored)) return folder_speaker(key, weights, log);
  const auto run = read_run_text(checkpoint::read_checkpoint_summary(weights).texts.run_config);
  return {given(key, weights), data::tokenizer_in(run.note("data.train"))};
}

enum class Mismatch : std::uint8_t { refused_if_sure, warned };

/// Whether the data are in the other's tokens; nothing where that is not sure: only names can be compared, or
/// names and sizes are the same and some ids mean other texts, as reserved ones do that were renamed. Bytes
/// are also the first ids of many a BPE, which has learnt to read longer ones.
std::optional<bool> fits(const Speaker& data, const Speaker& other) {
  if ((data.tokenizer == "bytes") != (other.tokenizer == "bytes")) return false;
  if (data.hash && other.hash) {
    const auto here = data.hash(data.vocabulary), there = other.hash(data.vocabulary);
    if (!here.empty() && !there.empty()) {
      if (here == there) return true;
      if (data.tokenizer != other.tokenizer) return false;
      const auto ours = data.ordinary(data.vocabulary), theirs = other.ordinary(data.vocabulary);
      if (ours.empty() || theirs.empty() || ours == theirs) return std::nullopt;
      return false;
    }
  }
  if (data.tokenizer == other.tokenizer) return true;
  return std::nullopt;
}

void compare(const Speaker& data, const Speaker& other, Mismatch mismatch, const Log& log) {
  if (data.tokenizer.empty() || other.tokenizer.empty()) return;
  const auto fit = fits(data, other);
  if (fit == true) return;
  const bool same_name = data.tokenizer == other.tokenizer;
  if (same_name && !fit) {
    log.warning(
        "{} was made with the tokenizer {}, and in that of {} some ids mean other texts: harmless if only "
        "reserved tokens were renamed, else tokenize again with the right --tokenizer",
        data.what, data.tokenizer, other.what);
    return;
  }
  const auto sentence =
      fmt::format("{} was made with the tokenizer {}, but {} has {}", data.what, data.tokenizer, other.what,
                  same_name ? "another with as many ids" : other.tokenizer);
  if (fit == false && mismatch == Mismatch::refused_if_sure)
    throw_user_error("{}: their ids mean different texts; tokenize again with the right --tokenizer",
                     sentence);
  log.warning("{}; the same ids must mean the same texts", sentence);
}

void warn_of_other_templates(const Inputs& inputs, const Log& log) {
  const std::string of_train = inputs.train->chat_template();
  const auto is_other = [&](const data::TokenFile& file) {
    const auto& own = file.notes().chat_template;
    return !own.empty() && own != of_train;
  };
  for (const auto& part : inputs.train->parts()) {
    if (is_other(part.file))
      log.warning(
          "data.train: {} was made with another chat template than the files before it; the model learns both formats, "
          "and its checkpoints hold the first",
          part.file.path().string());
  }
  if (of_train.empty()) return;
  for (const auto& file : inputs.eval_files) {
    if (is_other(file))
      log.warning(
          "data.eval = {} was made with another chat template than data.train: its loss is that of another format",
          file.path().string());
  }
}

}  // namespace

void check_tokenizers(const Config& config, const Inputs& inputs, const fs::path& weights, const Log& log) {
  const auto& parts = inputs.train->parts();
  const data::TokenFile& first = inputs.train->with_tokenizer();
  const Speaker train = file_speaker("data.train", &first);
  for (const auto& part : parts) {
    if (&part.file != &first)
      compare(file_speaker("data.train", &part.file), train, Mismatch::refused_if_sure, log);
  }
  for (const auto& file : inputs.eval_files)
    compare(file_speaker("data.eval", &file), train, Mismatch::refused_if_sure, log);
  warn_of_other_templates(inputs, log);
  const Speaker model = weights.empty() ? Speaker() : weights_speaker("model.weights", weights, log);
  if (!model.tokenizer.empty()) return compare(train, model, Mismatch::refused_if_sure, log);
  std::error_code ignored;
  const fs::path path = config.model.config;
  const fs::path folder = fs::is_directory(path, ignored) ? path : path.parent_path();
  compare(train, folder_speaker("model.config", folder, log), Mismatch::warned, log);
}

void check_tokenizer(const data::TokenFile& data, const fs::path& weights, const Log& log) {
  compare(file_speaker("--data", &data), weights_speaker("--weights", weights, log),
          Mismatch::refused_if_sure, log);
}

}  // namespace llampi::train
