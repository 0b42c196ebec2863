// SPDX-License-Identifier: Apache-2.0
// The index of a Hugging Face folder with several safetensors files.
#pragma once

#include <map>
#include <string>

namespace llampi::checkpoint {

/// Tensor to the name of the file that holds it.
using SafetensorsIndex = std::map<std::string, std::string>;

/// @param source names the text in errors
/// @throws UserError if it is malformed, or names a file outside its folder
SafetensorsIndex parse_safetensors_index(const std::string& text, const std::string& source);

}  // namespace llampi::checkpoint
