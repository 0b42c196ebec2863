// SPDX-License-Identifier: Apache-2.0
#include "cli/suggestion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "llampi/core/text.hpp"

namespace llampi::cli {
namespace {

/// Names of the same thing in other trainers, written as plain() has it.
struct Alias {
  std::string_view name, key;
};
constexpr Alias kAliases[] = {
    {"activation_offloading", "activation.offload"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"adam_epsilon", "optimizer.eps"},
    {"attn_implementation", "run.attention"},
    {"backward_prefetch_policy", "fsdp.backward_prefetch"},
    {"batch_size", "train.micro_batch"},
    {"bf16", "fsdp.param_dtype"},
    {"checkpoint", "weights"},
    {"clip_grad", "optimizer.clip_grad_norm"},
    {"context_length", "data.seq_len"},
    {"data_parallel_shard_degree", "fsdp.shard_group_size"},
    {"dataset", "data.train"},
    {"enable_cpu_offload", "fsdp.cpu_offload"},
    {"enable_tensorboard", "log.tensorboard"},
    {"eval_steps", "train.eval_every"},
    {"fp16", "fsdp.param_dtype"},
    {"global_batch_size", "train.global_batch"},
    {"gradient_accumulation_steps", "train.global_batch"},
    {"gradient_checkpointing", "activation.checkpointing"},
    {"initial_load_path", "run.resume"},
    {"learning_rate", "optimizer.lr"},
    {"local_batch_size", "train.micro_batch"},
    {"logging_steps", "log.every"},
    {"lora_alpha", "lora.alpha"},
    {"lora_dropout", "lora.dropout"},
    {"lora_r", "lora.rank"},
    {"lr_scheduler_type", "optimizer.schedule"},
    {"max_grad_norm", "optimizer.clip_grad_norm"},
    {"max_length", "data.seq_len"},
    {"max_norm", "optimizer.clip_grad_norm"},
    {"max_seq_len", "data.seq_len"},
    {"max_seq_length", "data.seq_len"},
    {"max_steps", "train.steps"},
    {"mixed_precision", "fsdp.param_dtype"},
    {"model_name_or_path", "model.weights"},
    {"num_epochs", "train.epochs"},
    {"num_steps", "train.steps"},
    {"num_train_epochs", "train.epochs"},
    {"output_dir", "run.dir"},
    {"per_device_batch_size", "train.micro_batch"},
    {"per_device_train_batch_size", "train.micro_batch"},
    {"precision", "fsdp.param_dtype"},
    {"report_to", "log.tensorboard"},
    {"resume_from_checkpoint", "run.resume"},
    {"save_every", "checkpoint.every"},
    {"save_only_model", "checkpoint.content"},
    {"save_steps", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"seq_length", "data.seq_len"},
    {"sequence_length", "data.seq_len"},
    {"sharding_strategy", "fsdp.strategy"},
    {"target_modules", "lora.targets"},
    {"train_batch_size", "train.global_batch"},
    {"train_file", "data.train"},
    {"wandb", "log.tensorboard"},
    {"warmup", "optimizer.warmup_steps"},
    {"weights", "checkpoint"},
};

constexpr std::size_t kMostSuggestions = 3;

/// In lower case, with _ for -.
std::string plain(std::string text) {
  for (char& c : text) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string name_of(const std::string& key) { return key.substr(key.find('.') + 1); }  // npos + 1 is 0

/// Off by a third of its letters at most, or by two; or only the beginning is given.
bool is_near(const std::string& word, const std::string& known) {
  const std::size_t length = std::max(word.size(), known.size());
  const std::size_t allowed = std::max<std::size_t>(length / 3, length > 2 ? 2 : 1);
  return edit_distance(word, known) <= allowed || (word.size() > 2 && known.starts_with(word));
}

/// By whole keys where a section is given, else by their names: all that are equally near.
std::vector<std::string> nearest_keys(const std::string& word, const std::vector<std::string>& known) {
  std::vector<std::string> near;
  std::size_t smallest = 0;
  for (const auto& key : known) {
    const std::string other = plain(section_of(word).empty() ? name_of(key) : key);
    if (!is_near(word, other)) continue;
    const std::size_t distance = edit_distance(word, other);
    if (near.empty() || distance < smallest) {
      near = {key};
      smallest = distance;
    } else if (distance == smallest) {
      near.push_back(key);
    }
  }
  std::stable_partition(near.begin(), near.end(), [](const auto& key) { return section_of(key).empty(); });
  return near;
}

std::vector<std::string> same_name(const std::string& name, const std::vector<std::string>& known) {
  std::vector<std::string> found;
  for (const auto& key : known) {
    if (plain(name_of(key)) == name) found.push_back(key);
  }
  return found;
}

std::vector<std::string> same_thing(const std::string& name, const std::vector<std::string>& known) {
  for (const auto& alias : kAliases) {
    const auto key = std::find(known.begin(), known.end(), alias.key);
    if (alias.name == name && key != known.end()) return {*key};
  }
  return {};
}

}  // namespace

std::string section_of(const std::string& key) {
  const auto dot = key.find('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

std::vector<std::string> suggestions(const std::string& given, const std::vector<std::string>& known) {
  constexpr std::size_t kLongest = 64;  // what is longer is no mistyped word, and may be a whole file
  const std::string word = plain(given.substr(0, kLongest));
  const std::string section = section_of(word), name = name_of(word);
  auto found = same_name(name, known);
  if (!section.empty()) {  // a key of the section that is meant comes before its namesakes
    const auto own = std::find_if(found.begin(), found.end(),
                                  [&](const auto& key) { return is_near(section, section_of(key)); });
    if (own != found.end()) return {*own};
  }
  if (section.empty() && !found.empty()) {  // an option without a section that is one letter off is as likely
    for (const auto& option : known) {
      if (section_of(option).empty() && edit_distance(plain(option), word) == 1)
        found.insert(found.begin(), option);
    }
  }
  if (found.empty()) found = same_thing(name, known);
  if (found.empty()) found = nearest_keys(word, known);
  return found.size() > kMostSuggestions ? std::vector<std::string>{} : found;
}

std::string did_you_mean(const std::vector<std::string>& suggested, const std::string& prefix,
                         const std::string& help) {
  if (suggested.empty()) return fmt::format("; see {}", help);
  std::string text;
  for (const auto& one : suggested) text += (text.empty() ? "" : " or ") + prefix + one;
  return fmt::format("; did you mean {}?", text);
}

}  // namespace llampi::cli
