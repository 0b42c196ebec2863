// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/engine_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "llampi/comm/agree.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/core/error.hpp"

namespace llampi::checkpoint {
namespace {

bool belongs(const model::Parameter& parameter, TensorSet which) {
  return which == TensorSet::all || parameter.adapter == (which == TensorSet::adapters);
}

[[noreturn]] void refuse_token_file(const std::filesystem::path& weights) {
  throw_user_error("{} is a token file; weights are a checkpoint or a Hugging Face folder", weights.string());
}

void require_whole_model(const std::filesystem::path& weights) {
  if (read_checkpoint_summary(weights).texts.adapter.empty()) return;
  throw_user_error(
      "{} holds adapters and not the model that they belong to; merge them with llampi export, or give that model as "
      "weights, and the adapters with --adapter (lora.weights in training)",
      weights.string());
}

}  // namespace

TensorSet stored_tensors(const fsdp::Engine& engine) {
  const bool adapts = std::ranges::any_of(engine.model().parameters(), &model::Parameter::adapter);
  return adapts ? TensorSet::adapters : TensorSet::all;
}

std::vector<TensorInfo> tensor_infos(const fsdp::Engine& engine, TensorSet which) {
  const auto& parameters = engine.model().parameters();
  const auto& groups = engine.options().parameter_groups;
  std::vector<TensorInfo> infos;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const bool frozen = !groups.empty() && groups[p].frozen;
    if (belongs(parameters[p], which)) infos.push_back({parameters[p].name, parameters[p].shape, !frozen});
  }
  return infos;
}

std::vector<TensorPiece> tensor_pieces(const fsdp::Engine& engine,
                                       const std::vector<fsdp::StatePiece>& pieces, TensorSet which) {
  std::vector<int> index;
  int next = 0;
  for (const auto& parameter : engine.model().parameters())
    index.push_back(belongs(parameter, which) ? next++ : -1);
  std::vector<TensorPiece> result;
  for (const auto& piece : pieces) {
    const int tensor = index[static_cast<std::size_t>(piece.parameter)];
    if (tensor >= 0) result.push_back({tensor, piece.begin, piece.master, piece.exp_avg, piece.exp_avg_sq});
  }
  return result;
}

model::LlamaConfig config_of_weights(const std::filesystem::path& weights) {
  switch (identify(weights)) {
    case FileKind::huggingface_folder:
      return model::LlamaConfig::read(weights);
    case FileKind::checkpoint:
      return llama_of(read_checkpoint_summary(weights).texts, weights);
    case FileKind::tokens:
      break;
  }
  refuse_token_file(weights);
}

std::unique_ptr<WeightsSource> open_weights(const std::filesystem::path& weights,
                                            const model::LlamaConfig& config) {
  const FileKind kind = identify(weights);
  if (kind == FileKind::tokens) refuse_token_file(weights);
  if (kind == FileKind::huggingface_folder) return open_safetensors(weights, config.tie_word_embeddings);
  require_whole_model(weights);
  return open_checkpoint_weights(weights);
}

void load_weights(comm::World& world, device::Device& device, const std::filesystem::path& weights,
                  const model::LlamaConfig& config, fsdp::Engine& engine, WeightsReading reading,
                  const LoadSettings& settings) {
  const auto tensors = tensor_infos(engine);
  auto pieces = tensor_pieces(engine, engine.pieces_to_load());
  for (auto& piece : pieces) piece.exp_avg = piece.exp_avg_sq = {};
  std::unique_ptr<WeightsSource> source;  // null: a checkpoint of which each rank reads what it needs
  comm::agree(world, [&] {
    const bool each_reads = reading == WeightsReading::each && identify(weights) == FileKind::checkpoint;
    if (each_reads) {
      require_whole_model(weights);
    } else {
      source = open_weights(weights, config);
    }
  });
  if (source) {
    load_weights(world, device, *source, tensors, pieces, reading);
  } else {
    load_checkpoint(world, device, weights, tensors, pieces, settings);
  }
}

TensorSums load_base(comm::World& world, device::Device& device, const std::filesystem::path& weights,
                     const model::LlamaConfig& config, fsdp::Engine& engine, WeightsReading reading) {
  const auto tensors = tensor_infos(engine, TensorSet::base);
  const auto pieces = tensor_pieces(engine, engine.pieces_to_load(), TensorSet::base);
  std::unique_ptr<WeightsSource> source;
  comm::agree(world, [&] { source = open_weights(weights, config); });
  std::vector<io::RangeSum> sums;
  load_weights(world, device, *source, tensors, pieces, reading, &sums);
  return sums_of_tensors(world, tensors, std::move(sums));
}

void load_adapters(comm::World& world, device::Device& device, const std::filesystem::path& path,
                   const model::LoraConfig& config, fsdp::Engine& engine, WeightsReading reading) {
  const auto tensors = tensor_infos(engine, TensorSet::adapters);
  auto pieces = tensor_pieces(engine, engine.pieces_to_load(), TensorSet::adapters);
  for (auto& piece : pieces) piece.exp_avg = piece.exp_avg_sq = {};
  Adapter adapter;
  comm::agree(world, [&] {
    adapter = open_adapter(path);
    const auto& there = adapter.info.config;
    const auto same = [&](const char* key, const auto& asked, const auto& found) {
      if (asked == found) return;
      throw ConfigError({.field = key,
                         .value = fmt::format("{}", asked),
                         .problem = fmt::format("is not that of {}, which has {}", path.string(), found),
                         .remedy = fmt::format("use {}", found)});
    };
    same("lora.rank", config.rank, there.rank);
    same("lora.alpha", config.alpha, there.alpha);
    same("lora.scaling", word_of(config.scaling), word_of(there.scaling));
    std::set<std::string> names;
    for (const auto& tensor : tensors) names.insert(tensor.name);
    for (const auto& tensor : adapter.weights->tensors()) {
      if (names.contains(tensor.name)) continue;
      if (tensor.name.starts_with("lm_head."))
        throw_user_error(
            "{} adapts the head ({}), and training has no adapter of the head; merge it into its model with llampi "
            "export, and train that",
            path.string(), tensor.name);
      throw ConfigError({.field = "lora.targets",
                         .value = config.targets,
                         .problem = fmt::format("does not match {} of {}", tensor.name, path.string()),
                         .remedy = "use an expression that matches all linear layers of these adapters"});
    }
  });
  load_weights(world, device, *adapter.weights, tensors, pieces, reading);
}

}  // namespace llampi::checkpoint
