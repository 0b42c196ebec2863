// SPDX-License-Identifier: Apache-2.0
#include "model/lora_targets.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "llampi/core/config_error.hpp"
#include "llampi/core/regex.hpp"

namespace llampi::model {
namespace {

constexpr const char* kOthers[] = {"model.embed_tokens", "lm_head"};

[[noreturn]] void refuse_other(const std::string& entry, const std::string& module) {
  throw ConfigError(
      {.field = "lora.targets",
       .entry = entry,
       .problem = fmt::format("names {}, and adapters are of the linear layers of blocks only", module),
       .remedy =
           "use some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj, or proj for all of them"});
}

}  // namespace

LoraTargets::LoraTargets(const LlamaConfig& model, const LoraConfig& config)
    : targets_(config.targets), unused_(config.modules.begin(), config.modules.end()) {
  if (config.rank < 1) {
    throw ConfigError(
        {.field = "lora.rank", .value = std::to_string(config.rank), .problem = "is less than 1"});
  }
  const std::int64_t narrowest = std::min(model.hidden_size, model.intermediate_size);
  if (config.rank > narrowest) {
    throw ConfigError(
        {.field = "lora.rank",
         .value = std::to_string(config.rank),
         .problem = fmt::format("is more than the {} columns of a matrix of the model", narrowest),
         .remedy = "8 to 64 are usual"});
  }
  if (!(config.dropout >= 0 && config.dropout < 1)) {
    throw ConfigError(
        {.field = "lora.dropout", .value = fmt::format("{}", config.dropout), .problem = "is not in [0, 1)"});
  }
  if (!config.modules.empty()) {
    for (const auto* other : kOthers) {
      if (unused_.contains(other)) refuse_other(other, other);
    }
    return;
  }
  expression_ = parse_regex(targets_, "lora.targets");
  for (const auto* other : kOthers) {
    if (std::regex_search(other, *expression_)) refuse_other(targets_, other);
  }
}

bool LoraTargets::use(const std::string& module) {
  if (example_.empty()) example_ = module;
  const bool used = expression_ ? std::regex_search(module, *expression_) : unused_.erase(module) > 0;
  any_used_ = any_used_ || used;
  return used;
}

void LoraTargets::require_all_used() const {
  if (!unused_.empty()) {
    throw ConfigError(
        {.problem = fmt::format("there is an adapter of {}, and the model has no such linear layer",
                                *unused_.begin()),
         .remedy = "use the adapter with the model that it was made for"});
  }
  if (any_used_) return;
  throw ConfigError(
      {.field = "lora.targets",
       .entry = targets_,
       .problem = "matches no linear layer of the blocks",
       .remedy = fmt::format("give a regular expression such as q_proj|v_proj (a name is for example {})",
                             example_)});
}

}  // namespace llampi::model
