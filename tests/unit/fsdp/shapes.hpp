// SPDX-License-Identifier: Apache-2.0
// Shapes of published models.
#pragma once

#include "llampi/model/llama_config.hpp"

namespace llampi::test {

/// Llama-3-8B.
inline model::LlamaConfig shape_8b() {
  model::LlamaConfig config;
  config.vocab_size = 128256;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.layers = 32;
  config.query_heads = 32;
  config.key_value_heads = 8;
  config.head_dim = 128;
  config.max_position_embeddings = 8192;
  return config;
}

}  // namespace llampi::test
