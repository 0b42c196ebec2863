// SPDX-License-Identifier: Apache-2.0
// The layers of a Llama: embedding; attention and MLP of each layer; final norm, head and loss.
//
// Names: x is the layer's input, dx the gradient with respect to x; T, H, F, V, D, Hq, Hkv as in
// operations.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llampi/device/operation_sizes.hpp"
#include "llampi/model/fp8_recipe.hpp"
#include "llampi/model/model.hpp"
#include "model/adapters.hpp"

namespace llampi::model {

struct LlamaSizes {
  std::int64_t vocabulary = 0;       ///< V
  std::int64_t hidden = 0;           ///< H
  std::int64_t feed_forward = 0;     ///< F
  device::AttentionShape attention;  ///< Hq, Hkv, D
  double eps = 0;                    ///< of every RMSNorm
  std::optional<Fp8Recipe> fp8;      ///< of blocks
  bool qkv_bias = false, qk_norms = false;
};

// Each is given the name of its module and the indices of its parameters, in the order of the comment.

/// embed_tokens [V, H]
std::unique_ptr<Layer> make_embedding_layer(std::string module, int table, const LlamaSizes& sizes);
/// Products that adapters are beside, by layer.
enum AttentionProduct : int { kQkvProduct, kOutProduct };
enum MlpProduct : int { kGateUpProduct, kDownProduct };

/// input_layernorm [H], q_proj [Hq D, H], k_proj, v_proj [Hkv D, H], o_proj [H, Hq D]; q, k and v stand side
/// by side. Then, with qkv_bias, the biases of q_proj, k_proj and v_proj, side by side too; with qk_norms, q_norm and k_norm
/// [D].
std::unique_ptr<Layer> make_attention_layer(std::string module, std::vector<int> parameters,
                                            const LlamaSizes& sizes, Adapters adapters = {});
/// post_attention_layernorm [H], gate_proj, up_proj [F, H], down_proj [H, F]; gate and up stand side by side.
std::unique_ptr<Layer> make_mlp_layer(std::string module, std::vector<int> parameters,
                                      const LlamaSizes& sizes, Adapters adapters = {});
/// Which of a layer's neighbours have products in 8 bits, too.
struct Fp8Neighbours {
  bool before = true, after = true;
};
/// The same two with products in 8 bits.
std::unique_ptr<Layer> make_fp8_attention_layer(std::string module, std::vector<int> parameters,
                                                const LlamaSizes& sizes, Fp8Neighbours neighbours);
std::unique_ptr<Layer> make_fp8_mlp_layer(std::string module, std::vector<int> parameters,
                                          const LlamaSizes& sizes, Fp8Neighbours neighbours);
/// norm [H], head [V, H] (the embedding if it is tied)
std::unique_ptr<Layer> make_loss_layer(std::string module, std::vector<int> parameters,
                                       const LlamaSizes& sizes);

}  // namespace llampi::model
