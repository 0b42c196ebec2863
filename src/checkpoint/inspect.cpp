// SPDX-License-Identifier: Apache-2.0
// What a file is and what is in it, read by one process.
#include <hdf5.h>

#include <algorithm>

#include "checkpoint/checksums.hpp"
#include "checkpoint/stored_values.hpp"
#include "checkpoint/tensor_list.hpp"
#include "llampi/checkpoint/adapter.hpp"
#include "llampi/checkpoint/staging.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/folders.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;

CheckpointSummary read_attributes(hid_t file) {
  CheckpointSummary summary;
  summary.state = read_state(file);
  summary.texts = {io::hdf5::read_string(file, "model_config"), io::hdf5::read_string(file, "run_config")};
  if (io::hdf5::has_attribute(file, "chat_template"))
    summary.texts.chat_template = io::hdf5::read_string(file, "chat_template");
  if (io::hdf5::has_attribute(file, "adapter"))
    summary.texts.adapter = io::hdf5::read_string(file, "adapter");
  summary.program_version = io::hdf5::read_string(file, "program_version");
  summary.git_sha = io::hdf5::read_string(file, "git_sha");
  summary.created = io::hdf5::read_string(file, "created");
  summary.tensors = list_datasets(file, kRoles[0]);
  find_moments(file, summary.tensors);
  summary.has_optimizer = std::any_of(summary.tensors.begin(), summary.tensors.end(),
                                      [](const TensorInfo& tensor) { return tensor.optimizer; });
  summary.moments = moments_of(file);
  return summary;
}

}  // namespace

Metadata read_metadata(hid_t file, const fs::path& path) {
  const io::Hdf5Lock lock;
  require_checkpoint(file, path);
  if (!has_checksums(file)) return {read_attributes(file), {}};
  Metadata metadata;
  const auto damaged = [&](const std::string& how) -> DamagedCheckpoint {
    return DamagedCheckpoint(fmt::format("{} is damaged: {}", path.string(), how));
  };
  try {
    metadata = {read_attributes(file), read_all_checksums(file)};
    metadata.summary.has_checksums = true;
  } catch (const UserError& error) {  // what llampi wrote has everything
    throw damaged(error.what());
  }
  if (metadata_checksum(metadata.summary, metadata.checksums) != read_metadata_checksum(file))
    throw damaged("its names, shapes, texts or state do not fit their checksum");
  return metadata;
}

model::LlamaConfig llama_of(const CheckpointTexts& texts, const fs::path& file) {
  if (texts.model_config.empty())
    throw_user_error("{} is not a checkpoint of a Llama model: another program saved its own model in it",
                     file.string());
  return model::LlamaConfig::parse(texts.model_config, file.string());
}

CheckpointSummary read_checkpoint_summary(const fs::path& path) {
  CheckpointSummary summary;
  reading(path, [&] {
    const io::Hdf5Lock lock;
    summary = read_metadata(io::hdf5::open_file(path).id(), path).summary;
  });
  return summary;
}

namespace {

/// What is needed to compare the values of a file with their checksums.
struct Verifiable {
  StoredValues stored;
  Checksums checksums;
  int tensors = 0;
};

Verifiable open_to_verify(const fs::path& path) {
  const io::Hdf5Lock lock;
  const auto file = io::hdf5::open_file(path);
  const auto metadata = read_metadata(file.id(), path);
  const auto& tensors = metadata.summary.tensors;
  if (!metadata.checksums)
    throw_user_error("{} has no checksums to compare, because an older llampi wrote it; leave out --verify",
                     path.string());
  return {StoredValues(path, places_of(file.id(), open_datasets(file.id(), tensors)), tensors),
          checksums_of(metadata, tensors), static_cast<int>(tensors.size())};
}

/// Returns how many bytes they are. @throws DamagedCheckpoint
std::int64_t verify_values(const fs::path& path, const Verifiable& file, std::size_t role, int tensor) {
  const auto& checksums = file.checksums;
  const int index = dataset_index(role, tensor, static_cast<std::size_t>(file.tensors));
  const std::int64_t elements = elements_of(checksums.datasets[index].shape);
  std::vector<float> values(static_cast<std::size_t>(std::min(kTransferElements, elements)));
  const std::int64_t element_bytes = file.stored.element_bytes(role, tensor);
  std::vector<io::RangeSum> sums;
  Encoding encoding;
  for (std::int64_t begin = 0; begin < elements; begin += kTransferElements) {
    const std::int64_t count = std::min(kTransferElements, elements - begin);
    const auto bytes = file.stored.read(role, tensor, begin,
                                        std::span(values).first(static_cast<std::size_t>(count)), encoding);
    io::add_sums(sums, index, begin, bytes, element_bytes, checksums.block_elements);
  }
  require_right(path, checksums, checksums.combine(std::move(sums)).whole);
  return elements * element_bytes;
}

}  // namespace

std::int64_t verify_checkpoint(const fs::path& path) {
  std::int64_t bytes = 0;
  reading(path, [&] {
    const Verifiable file = open_to_verify(path);
    for (std::size_t role = 0; role < kRoles.size(); ++role) {
      for (int t = 0; t < file.tensors; ++t) {
        if (file.stored.has(role, t)) bytes += verify_values(path, file, role, t);
      }
    }
  });
  return bytes;
}

FileKind identify(const fs::path& path) try {
  const auto type = io::type_of(path);
  if (type == fs::file_type::not_found)
    throw_user_error("{}: no such file or folder{}{}", path.string(), seen_from(path), io::hub_advice(path));
  if (type == fs::file_type::directory) {
    if (io::type_of(path / "config.json") != fs::file_type::not_found) return FileKind::huggingface_folder;
    if (holds_adapter(path))
      throw_user_error(
          "{} holds adapters (PEFT) and not the model that they belong to; give that model's folder",
          path.string());
    throw_user_error(
        "the folder {} has neither checkpoints of a run nor the config.json of a Hugging Face folder",
        path.string());
  }
  if (path.extension() == ".safetensors")
    throw_user_error("{} is a safetensors file; give the folder that holds it, with its config.json",
                     path.string());
  if (path.filename() == "config.json")
    throw_user_error("{} is the configuration of a model; give the folder that holds it", path.string());
  const io::Hdf5Lock lock;
  const auto file = io::hdf5::open_file(path);
  if (io::hdf5::has_attribute(file.id(), "format")) {
    const auto format = io::hdf5::read_string(file.id(), "format");
    if (format == kCheckpointFormat) return FileKind::checkpoint;
    if (format == "llampi-tokens") return FileKind::tokens;
  } else if (io::hdf5::has_link(file.id(), "tokens")) {
    return FileKind::tokens;  // of another program
  }
  throw_user_error("{} is neither a llampi checkpoint nor a token file", path.string());
} catch (const io::hdf5::Failure& failure) {
  io::hdf5::throw_if_unreadable(failure, path);
  throw_user_error("{} is damaged and cannot be read ({})", path.string(), failure.reason());
}

}  // namespace llampi::checkpoint
