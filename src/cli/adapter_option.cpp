// SPDX-License-Identifier: Apache-2.0
#include "cli/adapter_option.hpp"

#include <filesystem>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/error_source.hpp"
#include "llampi/train/run_checkpoints.hpp"

namespace llampi::cli {

namespace fs = std::filesystem;

std::string base_of(const std::string& adapter) {
  const std::string base = checkpoint::open_adapter(adapter).info.base;
  std::error_code ignored;
  return base.empty() || !fs::exists(base, ignored) ? "" : base;
}

namespace {

void find_files(std::string& weights, std::string& adapter, const Log& log) {
  weights = train::resolve_weights(weights, log).string();
  if (!adapter.empty()) adapter = train::resolve_weights(adapter, log).string();
  if (!checkpoint::holds_adapter(weights)) return;
  if (!adapter.empty())
    throw_user_error(
        "--weights {} holds adapters, and so does --adapter {}; give the model that they belong to as --weights",
        weights, adapter);
  adapter = weights;
  weights = base_of(adapter);
  if (weights.empty()) {
    throw_user_error(
        "{} holds adapters, and the model that they belong to is not where it was ({}); give that as --weights, "
        "and the adapters as --adapter",
        adapter, checkpoint::open_adapter(adapter).info.base);
  }
  weights = train::resolve_weights(weights, log).string();
  log.info("the adapters in {} are merged into {}", adapter, weights);
}

}  // namespace

Option adapter_option(std::string& adapter) {
  return {
      "adapter",
      &adapter,
      "LoRA adapter to merge into the weights: PEFT's folder, a checkpoint of a run with lora.rank, or its run folder",
      {.name = "FOLDER|FILE"}};
}

void find_model(comm::World& world, std::string& weights, std::string& adapter, const Log& log) {
  weights = comm::from_rank_0(world, [&] {
    with_source("--weights ", weights, [&] { find_files(weights, adapter, log); });
    return weights;
  });
  adapter = world.broadcast(adapter, 0);
}

}  // namespace llampi::cli
