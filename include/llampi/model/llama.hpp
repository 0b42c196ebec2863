// SPDX-License-Identifier: Apache-2.0
// Llama as a model: its modules, parameters and layers.
#pragma once

#include <memory>
#include <optional>

#include "llampi/model/fp8_recipe.hpp"
#include "llampi/model/llama_config.hpp"
#include "llampi/model/lora.hpp"
#include "llampi/model/model.hpp"

namespace llampi::model {

/// Modules, parameters and layers (embedding; attention and MLP of each layer; final norm with head and
/// loss), with the names of LlamaForCausalLM. A tied head uses model.embed_tokens.weight and has no parameter
/// of its own.
/// @param fp8 none: products are in the dtype of the activations
/// @param lora none: no adapters; otherwise each adapter's matrices follow the weights of its layer, named as in LoraConfig
/// @throws ConfigError for 8 bits and a size that is not a multiple of 16 or adapters, and for a rank, a dropout or targets
/// that no linear map of the blocks has
std::unique_ptr<Model> make_llama(const LlamaConfig& config, const std::optional<Fp8Recipe>& fp8 = {},
                                  const std::optional<LoraConfig>& lora = {});

}  // namespace llampi::model
