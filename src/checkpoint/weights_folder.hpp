// SPDX-License-Identifier: Apache-2.0
// The index of a Hugging Face folder with several safetensors files.
#pragma once

#include <map>
#include <string>

namespace llampi::checkpoint {

/// The files of such a folder: all weights in one, or the list of those that hold them.
inline constexpr const char* kWholeWeights = "model.safetensors";
inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";

/// Tensor to the name of the file that holds it.
using SafetensorsIndex = std::map<std::string, std::string>;

/// @param source names the text in errors
/// @throws UserError if it is malformed, or names a file outside its folder
SafetensorsIndex parse_safetensors_index(const std::string& text, const std::string& source);

}  // namespace llampi::checkpoint
