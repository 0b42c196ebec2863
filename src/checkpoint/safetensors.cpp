#include "llampi/checkpoint/safetensors.hpp"

#include <algorithm>
#include <filesystem>

#include "checkpoint/safetensors_file.hpp"
#include "checkpoint/staging.hpp"
#include "checkpoint/tensor_list.hpp"
#include "llampi/core/error.hpp"

namespace llampi {
namespace {

constexpr const char* kHead = "lm_head.weight";

std::filesystem::path weights_file(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw_user_error("there is no folder {}; give the Hugging Face folder that holds model.safetensors",
                     folder.string());
  }
  const fs::path file = folder / "model.safetensors";
  if (fs::exists(file, ignored)) return file;
  if (fs::exists(folder / "model.safetensors.index.json", ignored)) {
    throw_user_error("not built yet: sharded safetensors ({}); join them into one model.safetensors",
                     (folder / "model.safetensors.index.json").string());
  }
  throw_user_error("there is no model.safetensors in {}; give the Hugging Face folder that holds it",
                   folder.string());
}

}  // namespace

void load_safetensors(Device& device, const std::filesystem::path& folder,
                      const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                      bool tied_head) {
  require_valid_pieces(tensors, pieces);
  const SafetensorsFile file(weights_file(folder));
  auto found = file.tensors();
  if (tied_head) std::erase_if(found, [](const TensorInfo& tensor) { return tensor.name == kHead; });
  require_same_tensors(file.path().string(), tensors, found);
  Staging staging(device, kTransferElements);
  for (const auto& piece : pieces) {
    staging.in_parts(piece.model, [&](const Tensor& part, std::int64_t begin) {
      file.read(tensors[piece.tensor].name, piece.begin + begin, part.elements(), staging.values());
      staging.store(part);
    });
  }
}

}  // namespace llampi
