// SPDX-License-Identifier: Apache-2.0
// What a run reads, and what must hold of it together with the configuration.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/data/loader.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/train/config.hpp"

namespace llampi::train {

struct Inputs {
  model::LlamaConfig llama;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<data::TrainingData> train;
  std::vector<data::TokenFile> eval_files;
  std::unique_ptr<data::Sampler> sampler;
  data::BatchOptions batch_options;
  checkpoint::TrainingState fresh;  ///< of a run that has not begun
  /// Of a run that trains adapters: its base. Before it is read, zeros.
  checkpoint::TensorSums base_sums = {};

  /// Whether sequences can consist of several documents that do not see each other.
  bool packs_documents() const;
  /// Whether tokens of a document can have no label.
  bool has_loss_mask() const;
};

/// What checkpoints of the run say of adapters and their base: CheckpointTexts::adapter; empty where there are none.
/// @param base where it was read
std::string adapter_text_of(const Inputs& inputs, const Config& config, const std::string& base);

/// Of the model. @throws UserError for a model that is none, or whose context is shorter than data.seq_len
model::LlamaConfig read_model_config(const Config& config, const std::string& model_text = "");

/// Samples of a file of rows must not cut them. @param option that gave `seq_len`, for the message
/// @throws UserError
void check_rows(const data::TokenFile& file, std::int64_t seq_len, const std::string& option);

/// The model must have all ids of a file. @param model its name, for the message
/// @throws UserError
void check_vocabulary(const data::TokenFile& file, const model::LlamaConfig& config,
                      const std::string& model);

/// Says how many labels an evaluation on the file leaves out: those at its end that do not fill a sample.
void note_incomplete_sample(const data::TokenFile& file, std::int64_t seq_len, const Log& log);

/// @param model_text the config.json to take instead of model.config; empty: that
/// @throws UserError
Inputs open_inputs(const Config& config, int ranks, const std::string& model_text = "");

}  // namespace llampi::train
