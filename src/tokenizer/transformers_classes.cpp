// SPDX-License-Identifier: Apache-2.0
// What AutoTokenizer of transformers 5 (5.24) makes of a tokenizer.json. Many of its classes take vocabulary, merges and added
// tokens from the file, and have the steps before them built in. Here are those that folders of the supported models name.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "llampi/io/posix_file.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"
#include "tokenizer/fields.hpp"

namespace llampi::tokenizer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// The steps of a normalizer or pre-tokenizer in a list, without fields that change no id.
json steps_of(const json& value, int depth = 0) {
  constexpr int kDeepest = 8;  // make_tokenizer() refuses more
  json steps = json::array();
  if (!value.is_object() || depth > kDeepest) return steps;
  for (const char* nested : {"normalizers", "pretokenizers"}) {
    if (!value.contains(nested)) continue;
    for (const json& step : value[nested]) {
      for (const json& inner : steps_of(step, depth + 1)) steps.push_back(inner);
    }
    return steps;
  }
  json step = value;
  const bool is_metaspace = step.value("type", "") == "Metaspace";
  for (const char* name :
       {"trim_offsets", is_metaspace ? "split" : "", is_metaspace ? "add_prefix_space" : ""})
    step.erase(name);
  if (step.value("type", "") == "ByteLevel" && !step.contains("use_regex")) step["use_regex"] = true;
  steps.push_back(step);
  return steps;
}

struct Pipeline {
  json normalizer = json::array(), pre_tokenizer = json::array();
};

/// @param config tokenizer_config.json
Pipeline built_in(const std::string& name, const json& config) {
  const auto flag = [&](const char* key, bool otherwise) {
    return config.contains(key) && config[key].is_boolean() ? config[key].get<bool>() : otherwise;
  };
  const auto byte_level = [&](bool use_regex) {
    return json{{"type", "ByteLevel"},
                {"add_prefix_space", flag("add_prefix_space", false)},
                {"use_regex", use_regex}};
  };
  const json nfc = json::array({{{"type", "NFC"}}});
  if (name == "GPT2Tokenizer") return {.pre_tokenizer = json::array({byte_level(true)})};
  if (name == "GPTNeoXTokenizer") return {nfc, json::array({byte_level(true)})};
  if (name == "Qwen2Tokenizer") {
    const json split = {
        {"type", "Split"},
        {"pattern",
         {{"Regex",
           R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
        {"behavior", "Isolated"},
        {"invert", false}};
    return {nfc, json::array({split, byte_level(false)})};
  }
  const char* scheme = name == "LlamaTokenizer" && flag("legacy", false) ? "always" : "first";
  if (!flag("add_prefix_space", true)) scheme = "never";
  return {.pre_tokenizer =
              json::array({{{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}}})};
}

/// Empty: one that follows the file.
std::string class_of(const json& config, const std::string& model_type, bool is_byte_level) {
  if (model_type == "mistral") return "";
  if (model_type == "qwen2") return "Qwen2Tokenizer";
  std::string name = config.contains("tokenizer_class") && config["tokenizer_class"].is_string()
                         ? config["tokenizer_class"].get<std::string>()
                         : "";
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (name.empty() && model_type == "qwen3") return "Qwen2Tokenizer";
  const bool is_built_in = name == "GPT2Tokenizer" || name == "GPTNeoXTokenizer" ||
                           name == "Qwen2Tokenizer" || name == "CodeLlamaTokenizer" ||
                           (name == "LlamaTokenizer" && !is_byte_level);
  return is_built_in ? name : "";
}

/// Empty: not there.
std::string text_in(const fs::path& folder, const char* name) {
  std::error_code ignored;
  return fs::exists(folder / name, ignored) ? io::read_whole(folder / name) : "";
}

json object_in(const fs::path& folder, const char* name) {
  const std::string text = text_in(folder, name);
  return text.empty() ? json::object() : parse_object(text, (folder / name).string());
}

/// The tokens that keys such as "pad_token" name, and those in "model_specific_special_tokens".
void add_named(const json& fields, json& tokens) {
  const auto add = [&](const std::string& key, const json& value) {
    const json& name = value.is_object() && value.contains("content") ? value["content"] : value;
    if (name.is_string() && name != "") tokens[name.get<std::string>()] = key;
  };
  for (const auto& [key, value] : fields.items()) {
    if (key.ends_with("_token")) add(key, value);
    if (key != "model_specific_special_tokens" || !value.is_object()) continue;
    for (const auto& [inner, name] : value.items()) add(inner, name);
  }
}

std::vector<std::string> tokens_that_transformers_adds_in(const fs::path& folder) {
  const json file = object_in(folder, "tokenizer.json");
  if (file.empty()) return {};
  json tokens = json::object();
  const json config = object_in(folder, "tokenizer_config.json");
  add_named(config, tokens);
  if (!config.contains("added_tokens_decoder"))
    add_named(object_in(folder, "special_tokens_map.json"), tokens);
  for (const json& added : file.value("added_tokens", json::array()))
    tokens.erase(added.value("content", ""));
  std::vector<std::string> names;
  for (const auto& [name, key] : tokens.items()) {
    // These apply_neighbours() adds, too.
    const bool is_added =
        (key == "bos_token" || key == "eos_token") && file.at("model").at("vocab").contains(name);
    if (!is_added) names.push_back(name);
  }
  return names;
}

std::string class_that_overrides_in(const fs::path& folder, const std::string& model_type) {
  const std::string text = text_in(folder, "tokenizer.json");
  if (text.empty()) return "";
  const json config = object_in(folder, "tokenizer_config.json");
  if (config.contains("auto_map")) return "";  // a class of the folder's own
  const auto name = class_of(config, model_type, text.find("\"ByteLevel\"") != text.npos);
  if (name.empty()) return "";
  const json file = parse_object(text, (folder / "tokenizer.json").string());
  const auto [normalizer, pre_tokenizer] = built_in(name, config);
  const bool follows = steps_of(file.value("normalizer", json())) == normalizer &&
                       steps_of(file.value("pre_tokenizer", json())) == pre_tokenizer;
  return follows ? "" : name;
}

}  // namespace

std::vector<std::string> tokens_that_transformers_adds(const fs::path& folder) {
  try {
    return tokens_that_transformers_adds_in(folder);
  } catch (const std::exception&) {  // malformed
    return {};
  }
}

std::string class_that_overrides(const fs::path& folder, const std::string& model_type) {
  try {
    return class_that_overrides_in(folder, model_type);
  } catch (const std::exception&) {  // malformed
    return "";
  }
}

}  // namespace llampi::tokenizer
