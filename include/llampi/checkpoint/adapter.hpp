// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters in files: PEFT's folder (adapter_config.json with adapter_model.safetensors), and the checkpoints of runs
// that train adapters, which hold nothing of the base but its checksums.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/io/block_sums.hpp"
#include "llampi/model/lora.hpp"
#include "llampi/tokenizer/tokenizer.hpp"

namespace llampi::checkpoint {

/// By a tensor's name: the CRC-32 of the CRC-32s (four bytes each, the lowest first) of its blocks of 1,048,576 elements, as
/// float32. They do not depend on the dtype that the base is kept in, nor on who has read it.
using TensorSums = std::map<std::string, std::uint32_t>;

struct AdapterInfo {
  model::LoraConfig config;   ///< PEFT's meaning; of files, with the names of the linear maps in `modules`
  std::string base = {};      ///< where the base was: base_model_name_or_path
  TensorSums base_sums = {};  ///< empty: not known, as of PEFT's folders
};

/// JSON: adapter_config.json as PEFT writes and reads it. @param layers of the model: target_modules are short names
/// ("q_proj") where each layer has the adapter, and otherwise whole ones
std::string adapter_config_text(const AdapterInfo& info, std::int64_t layers);
/// The same with the checksums of the base: the attribute `adapter` of a checkpoint.
std::string adapter_text(const AdapterInfo& info, std::int64_t layers);
/// Of either text, but for the names of the linear maps, which those of tensors tell.
/// @param source named in errors
/// @throws UserError for a text that is none, and for what is not supported, by name (DoRA, biases, other modules that are
/// trained, ranks that differ, ...)
AdapterInfo parse_adapter(const std::string& text, const std::string& source);

struct Adapter {
  std::filesystem::path path;
  AdapterInfo info;
  std::unique_ptr<WeightsSource> weights;  ///< with the names of model::lora_a_of() and lora_b_of()
};

/// Whether it is a checkpoint of adapters alone, or PEFT's folder.
bool holds_adapter(const std::filesystem::path& path);
/// @throws UserError if it is neither, or damaged
Adapter open_adapter(const std::filesystem::path& path);

/// The chat template that weights were trained with: that of the adapters, where they are known to have one, else that of the
/// run that wrote the weights. Empty text: none is known, as of the folder of a whole model, whose tokenizer has it.
/// @param weights, adapter as of --weights and --adapter; empty: none
/// @throws UserError if one of them is neither weights nor adapters
tokenizer::ChatTemplateText trained_template(const std::filesystem::path& weights,
                                             const std::filesystem::path& adapter);

/// The files that it is in. @throws UserError if there is no such file or folder
std::vector<std::filesystem::path> adapter_files(const std::filesystem::path& path);

/// The weights of a model into which an adapter is merged: W + scale B A, summed in float32 in the order of the ranks.
/// @throws UserError if the model has no linear map of that name and shape
std::unique_ptr<WeightsSource> merge(std::unique_ptr<WeightsSource> base, Adapter adapter);

/// @param sums of this rank's part of the values, RangeSum::dataset being an index into `tensors`; each element at least once
/// on some rank. Collective; the same on all ranks
TensorSums sums_of_tensors(comm::World& world, const std::vector<TensorInfo>& tensors,
                           std::vector<io::RangeSum> sums);
/// Of all that a source has; each rank reads a part. Collective. @throws UserError
TensorSums sums_of_source(comm::World& world, const WeightsSource& source);
/// @param found of the model that is there @param base, adapter where they are, for the message
/// @throws UserError naming the tensors that differ, and where the base was
void require_same_base(const TensorSums& found, const AdapterInfo& info, const std::string& base,
                       const std::string& adapter);

/// merge(), after the base was compared with the checksums in the adapter's file, where that has some. Collective.
std::unique_ptr<WeightsSource> merge_checked(comm::World& world, std::unique_ptr<WeightsSource> base,
                                             Adapter adapter);

}  // namespace llampi::checkpoint
