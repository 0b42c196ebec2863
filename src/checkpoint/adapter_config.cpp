// SPDX-License-Identifier: Apache-2.0
// What files say of an adapter: adapter_config.json, and the attribute of a checkpoint.

#include <cmath>
#include <nlohmann/json.hpp>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/core/error.hpp"

namespace llampi::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBaseSums = "base_checksums";

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

/// Short names where each layer has them.
std::vector<std::string> target_modules(const std::vector<std::string>& modules, std::int64_t layers) {
  std::map<std::string, std::int64_t> layers_of;
  for (const auto& module : modules) ++layers_of[last_part(module)];
  std::vector<std::string> names;
  for (const auto& [name, count] : layers_of) {
    if (count != layers) return modules;
    names.push_back(name);
  }
  return names;
}

Json config_json(const AdapterInfo& info, std::int64_t layers) {
  const auto& c = info.config;
  const bool whole = c.alpha == std::floor(c.alpha) && std::abs(c.alpha) < 1e15;
  return {{"base_model_name_or_path", info.base},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"lora_alpha", whole ? Json(static_cast<std::int64_t>(c.alpha)) : Json(c.alpha)},
          {"lora_dropout", c.dropout},
          {"modules_to_save", nullptr},
          {"peft_type", "LORA"},
          {"r", c.rank},
          {"target_modules", target_modules(c.modules, layers)},
          {"task_type", "CAUSAL_LM"},
          {"use_dora", false},
          {"use_rslora", c.scaling == model::LoraScaling::rslora}};
}

/// A field that is there and asks for something.
bool asks(const nlohmann::json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null() || *found == false) return false;
  return !((found->is_object() || found->is_array()) && found->empty());
}

/// What would make the adapter another function of the weights.
void refuse_what_is_not_supported(const nlohmann::json& config, const std::string& source) {
  const auto refuse = [&](const char* name) {
    throw_user_error(
        "{}: {} = {} is not supported; llampi reads LoRA adapters of linear layers and nothing else", source,
        name, config[name].dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  };
  if (config.value("peft_type", nlohmann::json("LORA")) != "LORA") refuse("peft_type");
  if (asks(config, "bias") && config["bias"] != "none") refuse("bias");
  for (const char* name :
       {"use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias",
        "layer_replication", "trainable_token_indices", "target_parameters", "use_qalora", "use_bdlora",
        "alora_invocation_tokens", "kasa_config", "arrow_config", "monteclora_config", "velora_config"}) {
    if (asks(config, name)) refuse(name);
  }
  // These begin with other weights of the base than those in its files.
  const auto begin = config.value("init_lora_weights", nlohmann::json(true));
  if (begin.is_string() && begin != "gaussian" && begin != "orthogonal" && begin != "eva")
    refuse("init_lora_weights");
}

double number_of(const nlohmann::json& config, const char* name, double otherwise,
                 const std::string& source) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return otherwise;
  if (!found->is_number() || !std::isfinite(found->get<double>()))
    throw_user_error("{}: {} is not a number", source, name);
  return found->get<double>();
}

TensorSums sums_in(const nlohmann::json& config, const std::string& source) {
  TensorSums sums;
  const auto found = config.find(kBaseSums);
  if (found == config.end()) return sums;
  if (!found->is_object()) throw_user_error("{}: {} is not an object", source, kBaseSums);
  for (const auto& [name, sum] : found->items()) {
    if (!sum.is_number_unsigned() || sum.get<std::uint64_t>() > 0xFFFFFFFF)
      throw_user_error("{}: the checksum of {} is not one", source, name);
    sums[name] = sum.get<std::uint32_t>();
  }
  return sums;
}

/// The path of the base is read back, so it must be as it is.
std::string text_of(const Json& json, const AdapterInfo& info, int indent) {
  try {
    return json.dump(indent);
  } catch (const nlohmann::json::type_error&) {  // not UTF-8
    throw_user_error(
        "the path {} of the base is not in UTF-8, as its name in a checkpoint of adapters must be; rename it",
        info.base);
  }
}

}  // namespace

std::string adapter_config_text(const AdapterInfo& info, std::int64_t layers) {
  return text_of(config_json(info, layers), info, 2) + "\n";
}

std::string adapter_text(const AdapterInfo& info, std::int64_t layers) {
  Json json = config_json(info, layers);
  json[kBaseSums] = info.base_sums;
  return text_of(json, info, -1);
}

AdapterInfo parse_adapter(const std::string& text, const std::string& source) {
  nlohmann::json config;
  constexpr int kDeepest = 64;  // what is deeper is no configuration, and would be shown by recursion
  bool too_deep = false;
  const auto look = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kDeepest;
    return !too_deep;
  };
  try {
    config = nlohmann::json::parse(text, look);
  } catch (const nlohmann::json::exception&) {
    throw_user_error("{} is not JSON; fetch it again", source);
  }
  if (too_deep || !config.is_object()) throw_user_error("{} is not the configuration of an adapter", source);
  refuse_what_is_not_supported(config, source);
  AdapterInfo info;
  const double rank = number_of(config, "r", 0, source);
  if (rank < 1 || rank > 1e6 || rank != std::floor(rank))
    throw_user_error("{}: r = {} must be a whole number from 1 to 1,000,000: the rank of the adapter", source,
                     rank);
  info.config.rank = static_cast<std::int64_t>(rank);
  info.config.alpha = number_of(config, "lora_alpha", 8, source);  // PEFT's default
  info.config.dropout = number_of(config, "lora_dropout", 0, source);
  if (asks(config, "use_rslora")) info.config.scaling = model::LoraScaling::rslora;
  if (const auto base = config.find("base_model_name_or_path"); base != config.end() && base->is_string())
    info.base = base->get<std::string>();
  info.base_sums = sums_in(config, source);
  return info;
}

}  // namespace llampi::checkpoint
