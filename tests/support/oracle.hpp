// SPDX-License-Identifier: Apache-2.0
// The fixtures of tests/oracle: what PyTorch computed in float64, and the deterministic weights, tokens,
// documents and masks that it computed it from (tests/oracle/README.md says how).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llampi/device/host_batch.hpp"
#include "llampi/model/fp8_recipe.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/optim/parameter_groups.hpp"

namespace llampi::test::oracle {

std::uint64_t draw(std::string_view name, std::uint64_t index);
/// In [-1, 1), exact in float32.
double unit(std::string_view name, std::uint64_t index);
/// Initial value of an element of a parameter, exact in float32. Fixture::initial_value() has a case's own.
double initial_value(const model::Parameter& parameter, std::int64_t index);

/// What a fixture keeps of a tensor.
struct Summary {
  double norm = 0;            ///< L2
  double dot = 0;             ///< with unit("probe", i)
  std::vector<double> first;  ///< the first four elements
};
Summary summarize(std::span<const double> values);

struct Step {
  double loss = 0;
  double grad_norm = 0;  ///< before clipping
  double lr = 0;
  std::int64_t valid_tokens = 0;
};

struct Fixture {
  std::string name;
  model::LlamaConfig config;
  std::int64_t seq_len = 0;
  std::int64_t global_batch = 0;
  double max_grad_norm = 0;
  bool documents = false;  ///< the stream has documents, and attention and labels stay inside them
  DType param_dtype = DType::float32;  ///< what forward and backward read the parameters rounded to
  struct {
    std::int64_t steps = 0;
    double lr = 0, min_lr = 0;
    std::string schedule;
    std::int64_t warmup_steps = 0;
    double beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  } training;
  /// Products in 8 bits, as tests/oracle/fp8.py has them. What PyTorch counted; what it found without them.
  struct {
    bool on = false;
    DType gradient_dtype = DType::float8_e5m2;
    model::Fp8Scales scales = model::Fp8Scales::tensor;
    std::int64_t sequences = 0;  ///< of a micro-batch; Fp8Scales::tensor: whose operands have one scale each
    std::int64_t float32_steps = 0;  ///< the first ones, in which float32 rounding changes no cast
    std::int64_t casts = 0, saturated = 0, zero_scales = 0;
    std::vector<double> bfloat16_losses;  ///< of each step, with operands that are rounded to bfloat16 only
    std::vector<double> float32_losses;   ///< with operands as they are
  } fp8;
  std::optional<model::LoraConfig> lora;  ///< adapters, which alone are trained
  bool uneven_blocks = false;             ///< initial matrices have blocks of different magnitudes
  optim::GroupRules rules;                ///< weight_decay is that of `training`

  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> document_starts;
  std::vector<std::uint8_t> mask;

  /// On the batch of step 1, before the first update.
  struct {
    double loss = 0, grad_norm = 0;
    std::int64_t valid_tokens = 0;
    std::map<std::string, Summary> parameters;
    std::map<std::string, Summary> gradients;  ///< of parameters that are trained
    Summary logits;                            ///< [seq_len, vocabulary] of sample 0; `first` is empty
  } initial;
  std::vector<Step> steps;
  std::map<std::string, Summary> final_parameters;

  /// Of an element of a parameter, exact in float32.
  double initial_value(const model::Parameter& parameter, std::int64_t index) const;
  /// A micro-batch of these samples of the stream.
  device::HostBatch batch(std::span<const std::int64_t> samples) const;
};

/// Those whose parameters are neither rounded nor frozen, whose products are not in 8 bits: not bf16_params,
/// groups_frozen, lora_all, lora_some, fp8_untied, fp8_tied, fp8_mistral, fp8_blocks, fp8_blocks_e4m3.
std::vector<std::string> fixture_names();
Fixture load(const std::string& name);

}  // namespace llampi::test::oracle
