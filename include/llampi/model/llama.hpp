// SPDX-License-Identifier: Apache-2.0
// Llama as a model: its modules, parameters and layers.
#pragma once

#include <memory>

#include "llampi/model/llama_config.hpp"
#include "llampi/model/model.hpp"

namespace llampi::model {

/// Modules, parameters and stages (embedding; attention and MLP of each layer; final norm with head and
/// loss), with the names of LlamaForCausalLM. A tied head uses model.embed_tokens.weight and has no parameter
/// of its own.
std::unique_ptr<Model> make_llama(const LlamaConfig& config);

}  // namespace llampi::model
