// SPDX-License-Identifier: Apache-2.0
// The names in PEFT's folders.
#pragma once

#include <string>

namespace llampi::checkpoint {

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";
/// Before the model's own names of tensors.
inline constexpr const char* kPeftPrefix = "base_model.model.";

/// "base_model.model.lm_head.lora_A.weight": "lm_head.lora_A.weight"; empty: it does not begin so.
std::string without_peft_prefix(const std::string& name);
/// "lm_head.lora_A.weight": "lm_head"; empty: it is no matrix of an adapter.
std::string module_of_adapter(const std::string& name);

}  // namespace llampi::checkpoint
