// SPDX-License-Identifier: Apache-2.0
#include "support/oracle.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "support/find_above.hpp"

namespace llampi::test::oracle {
namespace {

using nlohmann::json;

std::uint64_t splitmix64(std::uint64_t x) {
  std::uint64_t z = x + 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// FNV-1a, 64 bits.
std::uint64_t key(std::string_view name) {
  std::uint64_t value = 14695981039346656037U;
  for (const char c : name) value = (value ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return value;
}

Summary read_summary(const json& object) {
  return {object.at("norm"), object.at("dot"), object.value("first", std::vector<double>())};
}

std::map<std::string, Summary> read_summaries(const json& object) {
  std::map<std::string, Summary> summaries;
  for (const auto& [name, value] : object.items()) summaries[name] = read_summary(value);
  return summaries;
}

void make_stream(Fixture& fixture, const json& object) {
  const auto length = object.at("stream").at("tokens").get<std::uint64_t>();
  const bool masked = object.at("loss_mask");
  for (std::uint64_t i = 0; i < length; ++i) {
    const auto vocabulary = static_cast<std::uint64_t>(fixture.config.vocab_size);
    fixture.tokens.push_back(static_cast<std::int32_t>(draw("tokens", i) % vocabulary));
    fixture.mask.push_back(!masked || draw("mask", i) % 4 != 0 ? 1 : 0);
  }
  std::uint64_t start = 0;
  for (std::uint64_t k = 0; start < length; ++k) {
    fixture.document_starts.push_back(static_cast<std::int64_t>(start));
    if (!fixture.documents) break;
    start += 1 + draw("documents", k) % (2 * static_cast<std::uint64_t>(fixture.seq_len));
  }
}

optim::GroupRules read_rules(const json& object) {
  optim::GroupRules rules;
  rules.weight_decay = object.at("training").at("weight_decay");
  if (const auto given = object.find("rules"); given != object.end()) {
    rules.frozen = given->at("frozen");
    rules.lr_factors = given->at("lr_factors");
    rules.weight_decays = given->at("weight_decays");
  }
  return rules;
}

void read_fp8(Fixture& fixture, const json& object) {
  const std::string product_dtype = object.value("product_dtype", "auto");
  if (product_dtype == "auto") return;
  require(product_dtype == "fp8", "product_dtype of a fixture");
  const std::string dtype = object.at("fp8_gradient_dtype");
  require(dtype == "float8_e5m2" || dtype == "float8_e4m3fn", "fp8_gradient_dtype of a fixture");
  const auto scales = from_word<model::Fp8Scales>(object.value("fp8_scales", "tensor"));
  require(scales.has_value(), "fp8_scales of a fixture");
  const auto& counted = object.at("fp8");
  const auto& others = object.at("other_losses");
  fixture.fp8 = {.on = true,
                 .gradient_dtype = dtype == "float8_e5m2" ? DType::float8_e5m2 : DType::float8_e4m3fn,
                 .scales = *scales,
                 .sequences = object.at("micro_batch"),
                 .float32_steps = object.value("float32_steps", fixture.training.steps),
                 .casts = counted.at("casts"),
                 .saturated = counted.at("saturated"),
                 .zero_scales = counted.at("zero_scales"),
                 .bfloat16_losses = others.at("bfloat16"),
                 .float32_losses = others.at("float32")};
}

std::optional<model::LoraConfig> read_lora(const json& object) {
  const auto given = object.find("lora");
  if (given == object.end()) return {};
  const auto scaling = from_word<model::LoraScaling>(given->at("scaling").get<std::string>());
  require(scaling.has_value(), "scaling of a fixture");
  model::LoraConfig lora;
  lora.rank = given->at("rank");
  lora.alpha = given->at("alpha");
  lora.scaling = *scaling;
  lora.targets = given->at("targets");
  return lora;
}

void read_results(Fixture& fixture, const json& object) {
  const auto& initial = object.at("initial");
  fixture.initial = {.loss = initial.at("loss"),
                     .grad_norm = initial.at("grad_norm"),
                     .valid_tokens = initial.at("valid_tokens"),
                     .parameters = read_summaries(initial.at("parameters")),
                     .gradients = read_summaries(initial.at("gradients")),
                     .logits = read_summary(initial.at("logits"))};
  for (const auto& step : object.at("steps")) {
    fixture.steps.push_back({step.at("loss"), step.at("grad_norm"), step.at("lr"), step.at("valid_tokens")});
  }
  fixture.final_parameters = read_summaries(object.at("final"));
}

}  // namespace

std::uint64_t draw(std::string_view name, std::uint64_t index) { return splitmix64(key(name) + index); }

double unit(std::string_view name, std::uint64_t index) {
  const auto top_24_bits = static_cast<std::int64_t>(draw(name, index) >> 40);
  return static_cast<double>(top_24_bits - (1 << 23)) / (1 << 23);
}

double initial_value(const model::Parameter& parameter, std::int64_t index) {
  const double value = 0.125 * unit(parameter.name, static_cast<std::uint64_t>(index));
  return parameter.shape.size() == 1 ? static_cast<double>(static_cast<float>(1 + value)) : value;
}

Summary summarize(std::span<const double> values) {
  Summary summary;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    squares += values[i] * values[i];
    summary.dot += values[i] * unit("probe", i);
  }
  summary.norm = std::sqrt(squares);
  summary.first.assign(values.begin(), values.begin() + std::min<std::ptrdiff_t>(4, std::ssize(values)));
  return summary;
}

double Fixture::initial_value(const model::Parameter& parameter, std::int64_t index) const {
  const double value = oracle::initial_value(parameter, index);
  if (!uneven_blocks || parameter.shape.size() == 1) return value;
  const std::int64_t row = index / parameter.shape[1], col = index % parameter.shape[1];
  return std::ldexp(value, -2 * static_cast<int>((row / 128 + col / 128) % 3));
}

device::HostBatch Fixture::batch(std::span<const std::int64_t> samples) const {
  device::HostBatch batch(std::ssize(samples) * seq_len);
  std::size_t slot = 0;
  for (const std::int64_t sample : samples) {
    for (std::int64_t i = 0; i < seq_len; ++i, ++slot) {
      const std::int64_t at = sample * seq_len + i;
      const auto starts = [&](std::int64_t token) {
        return documents && std::binary_search(document_starts.begin(), document_starts.end(), token);
      };
      if (i == 0 || starts(at)) {
        batch.cu_seqlens()[static_cast<std::size_t>(batch.documents++)] = static_cast<std::int32_t>(slot);
      }
      const std::int32_t document = batch.cu_seqlens()[static_cast<std::size_t>(batch.documents - 1)];
      const bool valid = mask[static_cast<std::size_t>(at + 1)] && !starts(at + 1);
      batch.tokens()[slot] = tokens[static_cast<std::size_t>(at)];
      batch.labels()[slot] = valid ? tokens[static_cast<std::size_t>(at + 1)] : -1;
      batch.positions()[slot] = static_cast<std::int32_t>(slot) - document;
      batch.valid_labels += valid ? 1 : 0;
    }
  }
  batch.cu_seqlens()[static_cast<std::size_t>(batch.documents)] = static_cast<std::int32_t>(slot);
  return batch;
}

std::vector<std::string> fixture_names() {
  return {"mha_untied",         "gqa_tied", "gqa_llama3rope", "head_dim_given", "documents",     "mqa",
          "one_layer_one_head", "qwen2",    "qwen3",          "mistral",        "mistral_window"};
}

Fixture load(const std::string& name) {
  const std::string file = "oracle/" + name + ".json";
  std::string path = test::find_above("tests/" + file).string();
  if (path.empty()) path = LLAMPI_TEST_DATA "/" + file;  // the build folder may lie anywhere
  std::ifstream stream(path);
  if (!stream) throw Error(fmt::format("{} cannot be opened", path));
  const json object = json::parse(stream);

  Fixture fixture;
  fixture.name = name;
  fixture.config = model::LlamaConfig::parse(object.at("config").dump(), path);
  fixture.seq_len = object.at("seq_len");
  fixture.global_batch = object.at("global_batch");
  fixture.max_grad_norm = object.at("max_grad_norm");
  fixture.documents = object.at("documents");
  const std::string param_dtype = object.value("param_dtype", "float32");
  require(param_dtype == "float32" || param_dtype == "bfloat16", "param_dtype of a fixture");
  if (param_dtype == "bfloat16") fixture.param_dtype = DType::bfloat16;
  const auto& training = object.at("training");
  fixture.training = {training.at("steps"),    training.at("lr"),           training.at("min_lr"),
                      training.at("schedule"), training.at("warmup_steps"), training.at("beta1"),
                      training.at("beta2"),    training.at("eps"),          training.at("weight_decay")};
  fixture.uneven_blocks = object.value("uneven_blocks", false);
  fixture.rules = read_rules(object);
  fixture.lora = read_lora(object);
  read_fp8(fixture, object);
  make_stream(fixture, object);
  read_results(fixture, object);
  return fixture;
}

}  // namespace llampi::test::oracle
