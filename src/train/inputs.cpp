// SPDX-License-Identifier: Apache-2.0
#include "train/inputs.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "llampi/core/error.hpp"
#include "llampi/core/error_source.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/folders.hpp"
#include "llampi/train/config_rules.hpp"
#include "llampi/train/micro_batches.hpp"
#include "train/data_position.hpp"
#include "train/engine_config.hpp"

namespace llampi::train {

bool Inputs::packs_documents() const {
  const auto has_several = [](const auto& file) { return file.documents() > 1; };
  return batch_options.document_mask &&
         (train->has_documents() || std::ranges::any_of(eval_files, has_several));
}

bool Inputs::has_loss_mask() const {
  return train->has_loss_mask() || std::ranges::any_of(eval_files, &data::TokenFile::has_loss_mask);
}

model::LlamaConfig read_model_config(const Config& c, const std::string& model_text) {
  std::error_code ignored;
  const std::string hub = io::hub_advice(c.model.config);
  if (model_text.empty() && !hub.empty() && !std::filesystem::exists(c.model.config, ignored)) {
    const char* const key = c.model.weights == c.model.config ? "model.weights" : "model.config";
    throw_user_error("{} = {}: no such file or folder{}{}", key, c.model.config, seen_from(c.model.config),
                     hub);
  }
  model::LlamaConfig llama = with_source("model.config = ", c.model.config, [&] {
    return model_text.empty() ? model::LlamaConfig::read(c.model.config)
                              : model::LlamaConfig::parse(model_text, c.model.config);
  });
  if (c.data.seq_len > llama.max_position_embeddings) {
    throw_user_error(
        "data.seq_len = {} is larger than max_position_embeddings = {} of {}; give a smaller data.seq_len",
        c.data.seq_len, llama.max_position_embeddings, c.model.config);
  }
  return llama;
}

void check_rows(const data::TokenFile& file, std::int64_t seq_len, const std::string& option) {
  const std::int64_t row = file.row_tokens();
  if (row <= 0 || seq_len % row == 0) return;
  throw_user_error(
      "{} has sequences of {}, which {} = {} would cut; use {} = {}, or tokenize again with --seq-len {}",
      file.path().string(), count(row, "token"), option, seq_len, option, row, seq_len);
}

void check_vocabulary(const data::TokenFile& file, const model::LlamaConfig& config,
                      const std::string& model) {
  if (file.used_vocabulary() <= config.vocab_size) return;
  throw_user_error(
      "{} has ids up to {}, but vocab_size of the model {} is {}. The tokenizer may be another "
      "model's, or have an added token that the model has no row for; tokenize again with the model's own or use "
      "another model",
      file.path().string(), file.used_vocabulary() - 1, model, config.vocab_size);
}

void note_incomplete_sample(const data::TokenFile& file, std::int64_t seq_len, const Log& log) {
  const std::int64_t left_out = file.tokens() - 1 - file.samples(seq_len) * seq_len;
  if (left_out <= 0) return;
  log.info("{}: {} at the end do not fill a sample of {} and are left out", file.path().string(),
           count(left_out, "label"), seq_len);
}

std::string adapter_text_of(const Inputs& inputs, const Config& config, const std::string& base) {
  auto lora = lora_config(config);
  if (!lora) return "";
  for (const auto& parameter : inputs.model->parameters()) {
    const auto end = parameter.name.rfind(".lora_A.weight");
    if (parameter.adapter && end != std::string::npos) lora->modules.push_back(parameter.name.substr(0, end));
  }
  return checkpoint::adapter_text({*lora, base, inputs.base_sums}, inputs.llama.layers);
}

namespace {

constexpr const char *kTrainKey = "data.train = ", *kEvalKey = "data.eval = ";

/// What `work` returns; each UserError of it has the key in front.
auto with_key(const char* key, const auto& work) try { return work(); } catch (const UserError& error) {
  throw UserError(key + std::string(error.what()));
}

std::vector<data::NamedPart> named_files(const char* key, const std::string& text) {
  return with_key(key, [&] { return data::parse_token_files(text); });
}

/// @param open (key, path) → token file
std::unique_ptr<data::TrainingData> open_training_data(const Config& c, const auto& open) {
  std::vector<data::TrainingData::Part> parts;
  for (const auto& [path, times] : named_files(kTrainKey, c.data.train))
    parts.push_back({.file = open(kTrainKey, path), .times = times});
  return with_key(kTrainKey, [&] {
    return std::make_unique<data::TrainingData>(std::move(parts), c.data.seq_len, c.run.seed, c.data.shuffle);
  });
}

}  // namespace

Inputs open_inputs(const Config& c, int ranks, const std::string& model_text) {
  Inputs in;
  check_together(c);
  micro_batches_of_step(c, ranks);  // refuses before anything is read
  in.llama = read_model_config(c, model_text);
  in.model = model::make_llama(in.llama, fp8_recipe(c), lora_config(c));
  if (c.lora.rank > 0 && !c.model.weights) {
    throw_user_error(
        "lora.rank = {} needs model.weights: adapters are trained on a model, not on random weights",
        c.lora.rank);
  }
  for (const auto& parameter : in.model->parameters()) {
    if (c.lora.rank > 0 && !parameter.adapter) in.base_sums[parameter.name] = 0;
  }
  const auto open = [&](const char* key, const std::filesystem::path& path) {
    return with_source(key, path, [&] {
      data::TokenFile file(path);
      check_vocabulary(file, in.llama, c.model.config);
      check_rows(file, c.data.seq_len, "data.seq_len");
      return file;
    });
  };
  in.train = open_training_data(c, open);
  const std::int64_t samples = in.train->samples();
  if (samples < c.train.global_batch) {
    throw_user_error(
        "data.train = {} has {} of {}, fewer than train.global_batch = {}; use more text, a shorter "
        "data.seq_len or a smaller batch",
        c.data.train, count(samples, "sample"), count(c.data.seq_len, "token"), c.train.global_batch);
  }
  in.sampler = std::make_unique<data::Sampler>(samples, c.train.global_batch, c.run.seed, c.data.shuffle);
  if (!c.data.eval.empty()) {
    for (const auto& [path, times] : named_files(kEvalKey, c.data.eval)) {
      if (times != 1)
        throw_user_error("{}{}: an evaluation reads each file once; remove \":{}\"", kEvalKey, c.data.eval,
                         times);
      const auto& file = in.eval_files.emplace_back(open(kEvalKey, path));
      if (file.samples(c.data.seq_len) < 1) {
        throw_user_error("{}{} has {}, too few for one sample of data.seq_len = {} + 1", kEvalKey,
                         path.string(), count(file.tokens(), "token"), c.data.seq_len);
      }
    }
  }
  in.batch_options = {c.data.seq_len, c.train.micro_batch.value_or(1), c.data.document_mask,
                      in.llama.vocab_size};
  in.fresh = {.seed = static_cast<std::int64_t>(c.run.seed),
              .seq_len = c.data.seq_len,
              .global_batch = c.train.global_batch,
              .data_tokens = in.train->tokens(),
              .shuffle = c.data.shuffle,
              .loss_scale = scales_loss(c) ? c.optimizer.loss_scale : 0};
  if (total_steps(c, in.fresh) < 1)
    throw_user_error("train.epochs = {} is less than one step", c.train.epochs);
  return in;
}

}  // namespace llampi::train
