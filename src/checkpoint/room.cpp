// SPDX-License-Identifier: Apache-2.0
#include "llampi/checkpoint/room.hpp"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <system_error>

#include "checkpoint/save_options.hpp"
#include "checkpoint/schema.hpp"
#include "checkpoint/tensor_list.hpp"
#include "llampi/io/folders.hpp"

namespace llampi::checkpoint {

namespace fs = std::filesystem;

std::int64_t checkpoint_bytes(const std::vector<TensorInfo>& tensors, const CheckpointTexts& texts,
                              const SaveOptions& options) {
  std::int64_t bytes = metadata_bytes(tensors, texts, options.block_elements);
  for (const auto& tensor : tensors) {
    for (std::size_t role = 0; role < roles_of(tensor); ++role) {
      bytes += elements_of(tensor.shape) * element_bytes_of(role, options.file.moments) +
               options.file.alignment_bytes;
    }
  }
  return bytes;
}

std::int64_t checkpoint_bytes(const std::vector<TensorInfo>& tensors, const CheckpointTexts& texts,
                              const FileSettings& settings) {
  SaveOptions options;
  options.file = settings;
  return checkpoint_bytes(tensors, texts, options);
}

std::optional<std::int64_t> free_bytes(const fs::path& folder) {
  struct statvfs status {};
  if (::statvfs(io::nearest_existing(folder).c_str(), &status) != 0 || status.f_blocks == 0)
    return std::nullopt;
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

std::optional<std::int64_t> most_bytes_of_a_file() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

std::int64_t file_bytes(const fs::path& file) {
  std::error_code error;
  const auto bytes = fs::file_size(file, error);
  return error ? 0 : static_cast<std::int64_t>(bytes);
}

}  // namespace llampi::checkpoint
