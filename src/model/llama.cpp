// SPDX-License-Identifier: Apache-2.0
// A Llama as data: its module tree, parameters and layers, with the names of transformers' LlamaForCausalLM.
#include "llampi/model/llama.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <utility>

#include "llampi/core/config_error.hpp"
#include "model/llama_layers.hpp"
#include "model/lora_targets.hpp"
#include "model/rope.hpp"

namespace llampi::model {
namespace {

constexpr Initializer kZeros = {.kind = Initializer::Kind::zeros, .standard_deviation = 0};
constexpr Initializer kOnes = {.kind = Initializer::Kind::ones, .standard_deviation = 0};

void check_fp8_sizes(const LlamaSizes& sizes) {
  const auto& heads = sizes.attention;
  const bool in_blocks = sizes.fp8->scales == Fp8Scales::block;
  const std::int64_t multiple = fp8_multiple(sizes.fp8->scales);
  const std::pair<const char*, std::int64_t> all[] = {
      {"hidden_size", sizes.hidden},
      {"intermediate_size", sizes.feed_forward},
      {"num_attention_heads * head_dim", heads.query_cols()},
      in_blocks ? std::pair{"(num_attention_heads + 2 num_key_value_heads) * head_dim", heads.qkv_cols()}
                : std::pair{"num_key_value_heads * head_dim", heads.key_value_cols()}};
  constexpr std::int64_t kOfTensors = fp8_multiple(Fp8Scales::tensor);
  const bool fits_tensors =
      heads.key_value_cols() % kOfTensors == 0 &&
      std::ranges::all_of(all, [](const auto& side) { return side.second % kOfTensors == 0; });
  for (const auto& [name, size] : all) {
    if (size % multiple == 0) continue;
    throw ConfigError(
        {.problem = fmt::format("the model's {} is {}: products in FP8{} need multiples of {}", name, size,
                                in_blocks ? " with scales of blocks" : "", multiple),
         .remedy = in_blocks && fits_tensors ? "use {fp8_scales} = tensor" : "use {product_dtype} = auto"});
  }
}

LlamaSizes sizes_of(const LlamaConfig& config, const std::optional<Fp8Recipe>& fp8) {
  return {.vocabulary = config.vocab_size,
          .hidden = config.hidden_size,
          .feed_forward = config.intermediate_size,
          .attention = {config.query_heads, config.key_value_heads, config.head_dim},
          .eps = config.rms_norm_eps,
          .fp8 = fp8,
          .qkv_bias = config.family().qkv_bias,
          .qk_norms = config.family().qk_norms};
}

/// Layers with products in 8 bits have neither.
void check_fp8_family(const Architecture& family) {
  if (!family.qkv_bias && !family.qk_norms) return;
  throw ConfigError({.problem = fmt::format(
                         "products in FP8 are not supported for models of type {}, which have {}",
                         family.model_type, family.qkv_bias ? "biases of q, k and v" : "norms of q and k"),
                     .remedy = "use {product_dtype} = auto"});
}

class Llama final : public Model {
 public:
  Llama(const LlamaConfig& config, const std::optional<Fp8Recipe>& fp8, const std::optional<LoraConfig>& lora)
      : config_(config), sizes_(sizes_of(config, fp8)), lora_(lora) {
    if (fp8) check_fp8_family(config_.family());
    if (fp8) check_fp8_sizes(sizes_);
    if (fp8 && lora) {
      throw ConfigError(
          {.field = "product_dtype",
           .value = "fp8",
           .problem = "cannot be combined with adapters, whose products are in the dtype of the activations",
           .remedy = "use {product_dtype} = auto"});
    }
    if (lora) targets_.emplace(config, *lora);
    const int root = add_module("", class_of("ForCausalLM"), -1);
    const int model = add_module("model", class_of("Model"), root);
    const int table = add_embedding(model);
    const int layers = add_module("model.layers", "ModuleList", model);
    for (std::int64_t block = 0; block < config_.layers; ++block) add_block(block, layers);
    add_head(root, model, table);
    if (targets_) targets_->require_all_used();
  }

  const std::vector<Module>& modules() const override { return modules_; }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  const std::vector<std::unique_ptr<Layer>>& layers() const override { return layers_; }
  std::string block_type() const override { return class_of("DecoderLayer"); }
  std::int64_t vocabulary() const override { return config_.vocab_size; }

  std::vector<BufferSpec> constants(std::int64_t seq_len, DType compute) const override {
    return {{"rope", seq_len, config_.head_dim, statistics_dtype(compute)}};
  }

  void fill_constant(int index, const BufferSpec& spec, void* data) const override {
    require(index == 0 && spec.cols == config_.head_dim, "a Llama has one constant, its RoPE table");
    const auto frequencies = rope_frequencies(config_);
    if (spec.dtype == DType::float64) {
      fill_rope_table(frequencies, spec.rows, static_cast<double*>(data));
    } else {
      require(spec.dtype == DType::float32, "a RoPE table is float32 or float64");
      fill_rope_table(frequencies, spec.rows, static_cast<float*>(data));
    }
  }

 private:
  enum class Place : bool { apart, fused_with_previous };

  std::string class_of(const char* what) const { return config_.family().prefix + std::string(what); }

  device::AttentionShape attention_of(std::int64_t block) const {
    device::AttentionShape shape = sizes_.attention;
    shape.window = config_.window_of(block);
    return shape;
  }

  int add_module(const std::string& name, std::string type, int parent) {
    modules_.push_back({name, std::move(type), parent});
    return static_cast<int>(modules_.size()) - 1;
  }

  /// A module that is one parameter, "<name>.weight". Returns the parameter's index.
  int add_weight(const std::string& name, std::string type, int parent, std::vector<std::int64_t> shape,
                 Place place = Place::apart) {
    const int module = add_module(name, std::move(type), parent);
    const Initializer normal = {.kind = Initializer::Kind::normal,
                                .standard_deviation = config_.initializer_range};
    const Initializer initializer = shape.size() == 1 ? kOnes : normal;
    parameters_.push_back({.name = name + ".weight",
                           .shape = std::move(shape),
                           .module = module,
                           .initializer = initializer,
                           .fused_with_previous = place == Place::fused_with_previous});
    return static_cast<int>(parameters_.size()) - 1;
  }

  /// "<name>.bias" of a module that has a weight.
  int add_bias(int weight, std::int64_t elements, Place place = Place::apart) {
    const Parameter& of = parameters_[static_cast<std::size_t>(weight)];
    parameters_.push_back({.name = modules_[static_cast<std::size_t>(of.module)].name + ".bias",
                           .shape = {elements},
                           .module = of.module,
                           .initializer = kZeros,
                           .fused_with_previous = place == Place::fused_with_previous});
    return static_cast<int>(parameters_.size()) - 1;
  }

  int add_embedding(int model) {
    const char* name = "model.embed_tokens";
    const int table = add_weight(name, "Embedding", model, {config_.vocab_size, config_.hidden_size});
    layers_.push_back(make_embedding_layer(name, table, sizes_));
    return table;
  }

  void add_block(std::int64_t index, int layers) {
    const std::string name = "model.layers." + std::to_string(index);
    const std::string attention = name + ".self_attn", mlp = name + ".mlp";
    const std::int64_t hidden = config_.hidden_size, feed_forward = config_.intermediate_size;
    const std::int64_t queries = sizes_.attention.query_cols(), keys = sizes_.attention.key_value_cols();
    const int block = add_module(name, class_of("DecoderLayer"), layers);

    const int norm1 = add_weight(name + ".input_layernorm", class_of("RMSNorm"), block, {hidden});
    const int attention_module = add_module(attention, class_of("Attention"), block);
    const int q = add_weight(attention + ".q_proj", "Linear", attention_module, {queries, hidden});
    const int k = add_weight(attention + ".k_proj", "Linear", attention_module, {keys, hidden},
                             Place::fused_with_previous);
    const int v = add_weight(attention + ".v_proj", "Linear", attention_module, {keys, hidden},
                             Place::fused_with_previous);
    std::vector<int> more;
    if (sizes_.qkv_bias) {
      more = {add_bias(q, queries)};
      more.push_back(add_bias(k, keys, Place::fused_with_previous));
      more.push_back(add_bias(v, keys, Place::fused_with_previous));
    }
    if (sizes_.qk_norms) {
      for (const char* which : {".q_norm", ".k_norm"})
        more.push_back(
            add_weight(attention + which, class_of("RMSNorm"), attention_module, {config_.head_dim}));
    }
    const int o = add_weight(attention + ".o_proj", "Linear", attention_module, {hidden, queries});
    std::vector<int> of_attention{norm1, q, k, v, o};
    of_attention.insert(of_attention.end(), more.begin(), more.end());
    LlamaSizes sizes = sizes_;
    sizes.attention = attention_of(index);
    if (sizes_.fp8) {
      layers_.push_back(
          make_fp8_attention_layer(attention, std::move(of_attention), sizes, {.before = index > 0}));
    } else {
      layers_.push_back(make_attention_layer(attention, std::move(of_attention), sizes,
                                             adapters_of({{q, kQkvProduct, 0},
                                                          {k, kQkvProduct, queries},
                                                          {v, kQkvProduct, queries + keys},
                                                          {o, kOutProduct, 0}})));
    }

    const int norm2 = add_weight(name + ".post_attention_layernorm", class_of("RMSNorm"), block, {hidden});
    const int mlp_module = add_module(mlp, class_of("MLP"), block);
    const int gate = add_weight(mlp + ".gate_proj", "Linear", mlp_module, {feed_forward, hidden});
    const int up = add_weight(mlp + ".up_proj", "Linear", mlp_module, {feed_forward, hidden},
                              Place::fused_with_previous);
    const int down = add_weight(mlp + ".down_proj", "Linear", mlp_module, {hidden, feed_forward});
    if (sizes_.fp8) {
      layers_.push_back(
          make_fp8_mlp_layer(mlp, {norm2, gate, up, down}, sizes_, {.after = index + 1 < config_.layers}));
    } else {
      layers_.push_back(make_mlp_layer(
          mlp, {norm2, gate, up, down}, sizes_,
          adapters_of(
              {{gate, kGateUpProduct, 0}, {up, kGateUpProduct, feed_forward}, {down, kDownProduct, 0}})));
    }
  }

  struct LinearMap {
    int weight;          ///< parameter
    int product;         ///< of its layer
    std::int64_t first;  ///< column of the product's result
  };

  /// Adds the parameters of the adapters that these linear maps of a layer have.
  Adapters adapters_of(std::initializer_list<LinearMap> maps) {
    if (!lora_) return {};
    std::vector<Adapter> adapters;
    for (const LinearMap& map : maps) {
      const auto [module, shape] = std::pair(parameters_[static_cast<std::size_t>(map.weight)].module,
                                             parameters_[static_cast<std::size_t>(map.weight)].shape);
      const std::string name = modules_[static_cast<std::size_t>(module)].name;
      if (!targets_->use(name)) continue;
      const double bound = 1 / std::sqrt(static_cast<double>(shape[1]));
      adapters.push_back({.a = add_adapter(lora_a_of(name), module, {lora_->rank, shape[1]},
                                           {.kind = Initializer::Kind::uniform, .bound = bound}),
                          .b = add_adapter(lora_b_of(name), module, {shape[0], lora_->rank},
                                           {.kind = Initializer::Kind::zeros}),
                          .product = map.product,
                          .first = map.first,
                          .in = shape[1],
                          .module = name});
    }
    return {std::move(adapters), *lora_};
  }

  int add_adapter(const std::string& name, int parent, std::vector<std::int64_t> shape,
                  Initializer initializer) {
    const int module = add_module(name.substr(0, name.rfind('.')), "Linear", parent);
    parameters_.push_back({.name = name,
                           .shape = std::move(shape),
                           .module = module,
                           .initializer = initializer,
                           .adapter = true});
    return static_cast<int>(parameters_.size()) - 1;
  }

  /// The layer of the loss spans two modules, so it is the root's.
  void add_head(int root, int model, int table) {
    const int norm = add_weight("model.norm", class_of("RMSNorm"), model, {config_.hidden_size});
    int head = table;
    if (config_.tie_word_embeddings) {
      add_module("lm_head", "Linear", root);
    } else {
      head = add_weight("lm_head", "Linear", root, {config_.vocab_size, config_.hidden_size});
    }
    layers_.push_back(make_loss_layer("", {norm, head}, sizes_));
  }

  LlamaConfig config_;
  LlamaSizes sizes_;
  std::optional<LoraConfig> lora_;
  std::optional<LoraTargets> targets_;
  std::vector<Module> modules_;
  std::vector<Parameter> parameters_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace

std::unique_ptr<Model> make_llama(const LlamaConfig& config, const std::optional<Fp8Recipe>& fp8,
                                  const std::optional<LoraConfig>& lora) {
  return std::make_unique<Llama>(config, fp8, lora);
}

}  // namespace llampi::model
