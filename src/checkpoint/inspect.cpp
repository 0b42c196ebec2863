// What a file is and what is in it, read by one process.
#include <algorithm>

#include "checkpoint/schema.hpp"
#include "llampi/core/error.hpp"

namespace llampi {
namespace fs = std::filesystem;

CheckpointSummary read_checkpoint_summary(const fs::path& path) try {
  const Hdf5Lock lock;
  const auto file = hdf5::open_file(path);
  require_checkpoint(file.id(), path);
  CheckpointSummary summary;
  summary.state = read_state(file.id());
  summary.texts = {hdf5::read_string(file.id(), "model_config"), hdf5::read_string(file.id(), "run_config")};
  summary.program_version = hdf5::read_string(file.id(), "program_version");
  summary.git_sha = hdf5::read_string(file.id(), "git_sha");
  summary.created = hdf5::read_string(file.id(), "created");
  summary.tensors = list_datasets(file.id(), kRoles[0]);
  find_moments(file.id(), summary.tensors);
  summary.has_optimizer = std::any_of(summary.tensors.begin(), summary.tensors.end(),
                                      [](const TensorInfo& tensor) { return tensor.optimizer; });
  return summary;
} catch (const hdf5::Failure& failure) {
  throw_user_error("{} is damaged and cannot be read ({})", path.string(), failure.reason());
}

FileKind identify(const fs::path& path) try {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) throw_user_error("there is no file or folder {}", path.string());
  if (fs::is_directory(path, ignored)) {
    if (fs::exists(path / "config.json", ignored)) return FileKind::huggingface_folder;
    throw_user_error("the folder {} has no config.json; give a Hugging Face folder or a file", path.string());
  }
  const Hdf5Lock lock;
  const auto file = hdf5::open_file(path);
  if (hdf5::has_attribute(file.id(), "format")) {
    const auto format = hdf5::read_string(file.id(), "format");
    if (format == kCheckpointFormat) return FileKind::checkpoint;
    if (format == "llampi-tokens") return FileKind::tokens;
  } else if (hdf5::has_link(file.id(), "tokens")) {
    return FileKind::tokens;  // of another program
  }
  throw_user_error("{} is neither a llampi checkpoint nor a token file", path.string());
} catch (const hdf5::Failure& failure) {
  throw_user_error("{} is damaged and cannot be read ({})", path.string(), failure.reason());
}

}  // namespace llampi
