// SPDX-License-Identifier: Apache-2.0
// Whether two models are the same: that of a run, and that of weights which it is to continue with.
#pragma once

#include <string>

#include "llampi/model/llama_config.hpp"

namespace llampi::train {

/// @throws UserError if the two models' tensors differ in shape, naming the field, both values and both
/// sources; `advice` ends the sentence
void check_same_shapes(const model::LlamaConfig& run, const std::string& run_source,
                       const model::LlamaConfig& weights, const std::string& weights_source,
                       const std::string& advice);
/// Likewise if they compute differently in any other way.
void check_same_model(const model::LlamaConfig& run, const std::string& run_source,
                      const model::LlamaConfig& weights, const std::string& weights_source,
                      const std::string& advice);

}  // namespace llampi::train
