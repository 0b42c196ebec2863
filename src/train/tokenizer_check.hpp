// SPDX-License-Identifier: Apache-2.0
// Whether the token files of a run are in the language of its model.
#pragma once

#include <filesystem>

#include "llampi/core/log.hpp"
#include "llampi/train/config.hpp"
#include "train/inputs.hpp"

namespace llampi::train {

/// Compares the tokenizers of the token files with each other and with that of the weights: of a Hugging Face
/// folder, or of the run that trained a checkpoint. What the ids mean is compared where both are known to
/// vocabulary_hash(); else the names: bytes and anything else never fit, other names that differ may (a
/// converted tokenizer), and are warned of. So are ids that mean other texts under the same name and size, as
/// renamed reserved tokens do. So is a model.config whose folder holds another tokenizer, as its
/// weights need not be used. One process calls it.
/// @param weights as Start::weights
/// @throws UserError
void check_tokenizers(const Config& config, const Inputs& inputs, const std::filesystem::path& weights,
                      const Log& log);

/// The same for `evaluate --data`. One process calls it. @throws UserError
void check_tokenizer(const data::TokenFile& data, const std::filesystem::path& weights, const Log& log);

}  // namespace llampi::train
