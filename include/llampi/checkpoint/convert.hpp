// SPDX-License-Identifier: Apache-2.0
// Conversion between checkpoints and Hugging Face folders. Under mpirun every rank does an equal share; no rank
// holds the whole model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"
#include "llampi/core/tensor.hpp"

namespace llampi::checkpoint {

struct ExportRequest {
  std::filesystem::path checkpoint;
  std::filesystem::path output;  ///< folder; made if it does not exist
  /// Of a checkpoint of adapters, or PEFT's folder: the model that they are merged into.
  std::filesystem::path base = {};
  DType dtype = DType::float32;  ///< or bfloat16
  std::int64_t max_shard_bytes = 5'000'000'000;
  /// The first of these folders that holds a tokenizer gives its files; none is an answer too.
  std::vector<std::filesystem::path> tokenizers = {};
  bool is_over_bytes = false;  ///< the model was trained on tokens that are bytes, so it needs no tokenizer
  /// What is in the folder under the names of these files is replaced, or removed where the tokenizer's
  /// folder has no such file. Where no tokenizer is known, the one in the folder stays.
  bool overwrite = false;
};

/// Writes weights, config.json and the tokenizer's files, and the chat template that the run was trained
/// with; config.json last, so that a folder without it is not taken for a model. Collective.
/// @throws UserError without `overwrite` if the output already holds weights, a config.json, or files of
/// a tokenizer; for a folder into which another export writes, a full disk, a damaged checkpoint, ...
void export_folder(comm::World& world, const ExportRequest& request, const Log& log);

/// Writes the adapters in a checkpoint as PEFT's folder: adapter_model.safetensors in float32, chat_template.jinja with the
/// chat template that the run was trained with, if it has one, and adapter_config.json last.
/// Collective. @throws UserError as export_folder() does
void export_adapter(comm::World& world, const ExportRequest& request, const Log& log);

/// A checkpoint of step 0 without optimizer state, for model.weights. Collective.
/// @param overwrite a file that is there is replaced whatever it is; if not, only one that import_folder()
/// wrote
/// @throws UserError if the weights are not those of the folder's config.json, ...
void import_folder(comm::World& world, const std::filesystem::path& folder,
                   const std::filesystem::path& checkpoint, bool overwrite, const Log& log);

}  // namespace llampi::checkpoint
