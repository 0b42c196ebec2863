// Hugging Face folders: weights from model.safetensors.
#pragma once

#include <filesystem>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"

namespace llampi {

/// Fills the `model` member of each piece from FOLDER/model.safetensors (F32, BF16, F16), rounded to nearest
/// even where it is narrower; each rank maps the file and reads only its own ranges. Strict: every missing,
/// unexpected or misshaped tensor is named. `tied_head`: an lm_head.weight in the file is accepted and
/// ignored.
/// @throws UserError
void load_safetensors(Device& device, const std::filesystem::path& folder,
                      const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                      bool tied_head);

}  // namespace llampi
