// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters of a model: LoRA (Hu et al., arXiv 2106.09685), with the names and the meaning of PEFT's LoraConfig.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "llampi/core/words.hpp"

namespace llampi::model {

/// What an adapter's part of a product is multiplied by.
enum class LoraScaling : std::uint8_t {
  standard,  ///< alpha / rank
  rslora,    ///< alpha / sqrt(rank) (Kalajdzievski, arXiv 2312.03732)
};
constexpr auto word_table(LoraScaling) {
  return std::to_array<Word<LoraScaling>>(
      {{LoraScaling::standard, "standard"}, {LoraScaling::rslora, "rslora"}});
}

struct LoraConfig {
  /// PEFT's for Llama.
  static constexpr const char* kDefaultTargets = "q_proj|v_proj";

  std::int64_t rank = 0;
  double alpha = 16;
  double dropout = 0;  ///< of the input, in training; in [0, 1)
  LoraScaling scaling = LoraScaling::standard;
  /// ECMAScript, searched in the names of the linear maps of the blocks ("model.layers.0.self_attn.q_proj").
  std::string targets = kDefaultTargets;
  /// If there are some, these instead: whole names, as an adapter's files have them.
  std::vector<std::string> modules = {};
  std::uint64_t seed = 0;  ///< of dropout

  double scale() const {
    const auto r = static_cast<double>(rank);
    return scaling == LoraScaling::rslora ? alpha / std::sqrt(r) : alpha / r;
  }
};

/// The names of the two matrices of an adapter of the linear map `module`: A [rank, in], B [out, rank].
inline std::string lora_a_of(const std::string& module) { return module + ".lora_A.weight"; }
inline std::string lora_b_of(const std::string& module) { return module + ".lora_B.weight"; }

}  // namespace llampi::model
