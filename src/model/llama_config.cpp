// SPDX-License-Identifier: Apache-2.0
#include "llampi/model/llama_config.hpp"

// Defaults are those of transformers' LlamaConfig. A setting
// that would change the arithmetic and is not supported is refused; one that does not is ignored.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "llampi/core/text.hpp"
#include "model/json_fields.hpp"

namespace llampi::model {
namespace {

using nlohmann::json;

json parse_json(const std::string& text, const std::string& source) {
  constexpr int kDeepest = 64;  // printing and comparing values takes stack for each level
  const auto refuse_depth = [&](int depth, json::parse_event_t, const json&) {
    if (depth > kDeepest) throw_user_error("{}: this is nested more than {} levels deep.", source, kDeepest);
    return true;
  };
  try {
    return json::parse(text, refuse_depth);
  } catch (const json::exception& error) {
    const std::string what = error.what();  // "[json.exception...] parse error at line 1, column 2: ..."
    const auto words = what.find("] ");
    throw_user_error("{}: this is not JSON: {}.", source,
                     words == std::string::npos ? what : what.substr(words + 2));
  }
}

constexpr Architecture kArchitectures[] = {
    {.model_type = "llama", .prefix = "Llama"},
    {.model_type = "mistral",
     .prefix = "Mistral",
     .max_position_embeddings = 131072,
     .key_value_heads = 8,
     .window = 4096},
    {.model_type = "qwen2",
     .prefix = "Qwen2",
     .max_position_embeddings = 32768,
     .qkv_bias = true,
     .key_value_heads = 32,
     .window_by_layer = true},
    {.model_type = "qwen3",
     .prefix = "Qwen3",
     .max_position_embeddings = 32768,
     .qk_norms = true,
     .key_value_heads = 32,
     .head_dim = 128,
     .window_by_layer = true},
};

std::string causal_class(const Architecture& family) { return std::string(family.prefix) + "ForCausalLM"; }

/// By model_type, or by architectures where that is missing.
const Architecture& architecture_of(const JsonFields& fields) {
  const auto* classes = fields.find("architectures");
  const auto names = [&](const Architecture& family) {
    return classes->is_array() &&
           std::find(classes->begin(), classes->end(), causal_class(family)) != classes->end();
  };
  std::string types, all_classes;
  for (const Architecture& family : kArchitectures) {
    types += fmt::format("{}\"{}\"", types.empty() ? "" : ", ", family.model_type);
    all_classes += fmt::format("{}\"{}\"", all_classes.empty() ? "" : ", ", causal_class(family));
  }
  const std::string type = fields.text_or("model_type", "");
  for (const Architecture& family : kArchitectures) {
    if (type.empty() ? classes == nullptr || names(family) : type == family.model_type) {
      if (classes != nullptr && !names(family))
        fields.refuse("architectures", fmt::format("only \"{}\" is supported", causal_class(family)));
      return family;
    }
  }
  if (!type.empty()) fields.refuse("model_type", fmt::format("only models of type {} are supported", types));
  fields.refuse("architectures", fmt::format("only {} are supported", all_classes));
}

void refuse_flag(const JsonFields& fields, const char* name, const char* reason) {
  if (fields.flag_or(name, false)) fields.refuse(name, reason);
}

void refuse_unless(const JsonFields& fields, const char* name, double only, const char* reason) {
  if (fields.number_or(name, only) != only) fields.refuse(name, reason);
}

void refuse_given(const JsonFields& fields, const char* name, const char* reason) {
  if (fields.find(name)) fields.refuse(name, reason);
}

void refuse_unsupported(const JsonFields& fields, const Architecture& family) {
  if (fields.text_or("hidden_act", "silu") != "silu") {
    fields.refuse("hidden_act", "only \"silu\" is supported");
  }
  refuse_flag(fields, "attention_bias", "projections with a bias are not supported");
  refuse_flag(fields, "mlp_bias", "projections with a bias are not supported");
  refuse_unless(fields, "pretraining_tp", 1, "only 1 is supported, which is the same model");
  refuse_unless(fields, "attention_dropout", 0, "dropout is not supported, set it to 0");
  refuse_unless(fields, "partial_rotary_factor", 1, "RoPE on a part of a head is not supported");
  if (std::string_view(family.model_type) == "llama")
    refuse_given(fields, "sliding_window", "sliding windows of a Llama are not supported");
  refuse_given(fields, "quantization_config", "quantized weights are not supported, use the original ones");
}

/// As transformers does: Mistral has its window in every layer, Qwen from max_window_layers on, or as layer_types says.
void read_windows(const JsonFields& fields, const Architecture& family, LlamaConfig& config) {
  const bool asked = !family.window_by_layer || fields.flag_or("use_sliding_window", false);
  const std::int64_t given = fields.has("sliding_window") ? 0 : family.window_by_layer ? 4096 : family.window;
  const std::int64_t window = asked ? fields.size_or("sliding_window", given) : 0;
  const std::int64_t first = family.window_by_layer ? fields.whole_or("max_window_layers", 28) : 0;
  std::vector<std::int64_t> windows;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) windows.push_back(layer < first ? 0 : window);
  if (const auto* types = fields.find("layer_types")) {
    const auto is = [](const char* name) { return [name](const json& type) { return type == name; }; };
    const auto any_slides =
        types->is_array() && std::any_of(types->begin(), types->end(), is("sliding_attention"));
    if (!types->is_array() || !std::all_of(types->begin(), types->end(), [&](const json& type) {
          return is("full_attention")(type) || is("sliding_attention")(type);
        }))
      fields.refuse("layer_types", "only \"full_attention\" and \"sliding_attention\" are supported");
    if (any_slides && window == 0)
      fields.refuse("layer_types", "layers of \"sliding_attention\" need a sliding_window that is in use");
    if (window > 0 && std::ssize(*types) != config.layers)
      fields.refuse("layer_types",
                    fmt::format("a list of {} types is needed, one for each layer", config.layers));
    for (std::size_t layer = 0; window > 0 && layer < windows.size(); ++layer) {
      const bool slides = is("sliding_attention")((*types)[layer]);
      if (family.window_by_layer) {
        windows[layer] = slides ? window : 0;
      } else if (slides != (window > 0)) {
        fields.refuse("layer_types", "this model has a sliding window in all layers or in none");
      }
    }
  }
  if (std::any_of(windows.begin(), windows.end(), [](std::int64_t w) { return w > 0; }))
    config.windows = std::move(windows);
}

/// So that products of these sizes, of bytes too, are far from overflowing.
void check_sizes(const JsonFields& fields, const LlamaConfig& config) {
  constexpr std::int64_t kMostLayers = 100'000;
  constexpr double kMostParameters = 1e15;
  if (config.layers > kMostLayers)
    fields.refuse("num_hidden_layers", fmt::format("at most {} are supported", kMostLayers));
  const auto heads = static_cast<double>(2 * config.query_heads + 2 * config.key_value_heads);
  const double of_layer =
      heads * static_cast<double>(config.head_dim) + 3 * static_cast<double>(config.intermediate_size) + 2;
  const double rows =
      static_cast<double>(config.layers) * of_layer + 2 * static_cast<double>(config.vocab_size) + 1;
  const double parameters = rows * static_cast<double>(config.hidden_size);
  if (parameters > kMostParameters) {
    fields.refuse("hidden_size",
                  fmt::format("with the other sizes it makes {:.1e} parameters, and at most {:.0e} "
                              "are supported",
                              parameters, kMostParameters));
  }
}

void read_sizes(const JsonFields& fields, const Architecture& family, LlamaConfig& config) {
  config.vocab_size = fields.size("vocab_size");
  config.hidden_size = fields.size("hidden_size");
  config.intermediate_size = fields.size("intermediate_size");
  config.layers = fields.size("num_hidden_layers");
  config.query_heads = fields.size("num_attention_heads");
  const bool missing = family.key_value_heads > 0 && !fields.has("num_key_value_heads");
  config.key_value_heads =
      fields.size_or("num_key_value_heads", missing ? family.key_value_heads : config.query_heads);
  config.max_position_embeddings = fields.size_or("max_position_embeddings", family.max_position_embeddings);
  if (config.query_heads % config.key_value_heads != 0) {
    fields.refuse("num_key_value_heads",
                  fmt::format("it must divide num_attention_heads, which is {}", config.query_heads));
  }
  const std::int64_t given = fields.has("head_dim") ? 0 : family.head_dim;
  const bool derived = given == 0 && !fields.find("head_dim");
  if (derived && config.hidden_size % config.query_heads != 0) {
    fields.refuse("hidden_size",
                  fmt::format("without head_dim it must be a multiple of num_attention_heads, which is {}",
                              config.query_heads));
  }
  config.head_dim = fields.size_or("head_dim", given > 0 ? given : config.hidden_size / config.query_heads);
  if (config.head_dim % 2 != 0) {
    fields.refuse("head_dim",
                  fmt::format("RoPE needs an even size of a head, and this gives {}", config.head_dim));
  }
  check_sizes(fields, config);
}

Llama3Rope read_llama3(const JsonFields& rope) {
  Llama3Rope scaling;
  for (const char* name :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    rope.number(name);  // all are required
  }
  scaling.factor = rope.positive_or("factor", 0);
  scaling.low_freq_factor = rope.positive_or("low_freq_factor", 0);
  scaling.high_freq_factor = rope.positive_or("high_freq_factor", 0);
  scaling.original_max_position_embeddings = rope.positive_or("original_max_position_embeddings", 0);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.refuse("high_freq_factor",
                fmt::format("it must be above low_freq_factor, which is {}", scaling.low_freq_factor));
  }
  return scaling;
}

/// The `rope_scaling` of transformers 4 or the `rope_parameters` of 5.
void read_rope_object(const JsonFields& rope, bool theta_outside, LlamaConfig& config) {
  for (const auto& [name, value] : rope.object().items()) {
    if (value.is_object())
      rope.refuse(name.c_str(), "RoPE that differs from layer to layer is not supported");
  }
  const double theta = rope.positive_or("rope_theta", config.rope_theta);
  if (theta_outside && theta != config.rope_theta) {
    rope.refuse("rope_theta",
                fmt::format("another rope_theta, {}, stands outside, keep one of them", config.rope_theta));
  }
  config.rope_theta = theta;
  refuse_unless(rope, "partial_rotary_factor", 1, "RoPE on a part of a head is not supported");

  const std::string older = rope.text_or("type", "");
  const std::string type = rope.text_or("rope_type", older);
  if (!older.empty() && type != older)
    rope.refuse("rope_type", fmt::format("the field type says \"{}\"", older));
  if (type == "llama3") {
    config.rope_scaling = read_llama3(rope);
  } else if (type.empty()) {
    if (rope.find("factor")) rope.refuse("rope_type", "it must say which scaling the factor is for");
  } else if (type != "default") {
    rope.refuse(rope.find("rope_type") ? "rope_type" : "type",
                "only \"default\" and \"llama3\" are supported");
  }
}

void read_rope(const JsonFields& fields, LlamaConfig& config) {
  config.rope_theta = fields.positive_or("rope_theta", 10000);
  const auto* parameters = fields.find("rope_parameters");
  const auto* scaling = fields.find("rope_scaling");
  if (parameters && scaling && *parameters != *scaling) {
    fields.refuse("rope_scaling", "rope_parameters is given too and differs, keep one of them");
  }
  if (!parameters && !scaling) return;
  read_rope_object(fields.inner(parameters ? "rope_parameters" : "rope_scaling"),
                   fields.find("rope_theta") != nullptr, config);
}

}  // namespace

LlamaConfig LlamaConfig::parse(const std::string& json, const std::string& source) {
  const auto object = parse_json(json, source);
  const JsonFields fields(object, source);
  const Architecture& family = architecture_of(fields);
  refuse_unsupported(fields, family);

  LlamaConfig config;
  config.architecture = &family;
  read_sizes(fields, family, config);
  read_windows(fields, family, config);
  read_rope(fields, config);
  config.rms_norm_eps = fields.positive_or("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = fields.flag_or("tie_word_embeddings", false);
  config.initializer_range = fields.number_or("initializer_range", 0.02);
  if (config.initializer_range < 0)
    fields.refuse("initializer_range", "a standard deviation cannot be negative");
  config.json = json;
  return config;
}

std::span<const Architecture> architectures() { return kArchitectures; }

const Architecture& LlamaConfig::family() const {
  return architecture == nullptr ? kArchitectures[0] : *architecture;
}

std::string config_text(const LlamaConfig& config, DType dtype) {
  auto object = nlohmann::ordered_json::parse(config.json);
  object["architectures"] = {causal_class(config.family())};
  object["model_type"] = config.family().model_type;
  object["dtype"] = to_string(dtype);
  object["torch_dtype"] = to_string(dtype);
  // What version 5 writes, version 4 does not read: without a word it would compute another model. 5 reads
  // both.
  if (const auto rope = object.value("rope_parameters", nlohmann::ordered_json()); rope.is_object()) {
    object["rope_theta"] = config.rope_theta;
    if (config.rope_scaling) object["rope_scaling"] = rope;
  }
  return object.dump(2) + "\n";
}

LlamaConfig LlamaConfig::read(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto file = std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw_user_error(
        "{}: the model's configuration cannot be opened{}; give a Hugging Face config.json or its folder.",
        file.string(), seen_from(file));
  }
  std::ostringstream text;
  text << stream.rdbuf();
  if (stream.bad()) throw_user_error("{}: the model's configuration cannot be read.", file.string());
  return parse(text.str(), file.string());
}

}  // namespace llampi::model
