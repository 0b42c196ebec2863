// SPDX-License-Identifier: Apache-2.0
// The checkpoint file: names of groups, datasets and attributes, and how HDF5 is set up for it. See
// docs/formats.md.
#pragma once

#include <hdf5.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/io/hdf5.hpp"

namespace llampi::checkpoint {

inline constexpr const char* kCheckpointFormat = "llampi-checkpoint";
inline constexpr std::int64_t kCheckpointVersion = 1;

/// A group with one dataset per tensor, and where its values are in memory.
struct Role {
  const char* group;
  Tensor TensorPiece::*values;
};
inline constexpr std::array<Role, 3> kRoles{{{"model", &TensorPiece::model},
                                             {"optimizer/exp_avg", &TensorPiece::exp_avg},
                                             {"optimizer/exp_avg_sq", &TensorPiece::exp_avg_sq}}};
inline constexpr std::size_t kRolesWithoutOptimizer = 1;

/// The first so many roles are those in which a tensor is in the file.
inline std::size_t roles_of(const TensorInfo& tensor) {
  return tensor.optimizer ? kRoles.size() : kRolesWithoutOptimizer;
}

/// [role][tensor]; without a handle where a tensor is not in the file in that role.
using Datasets = std::array<std::vector<io::hdf5::Dataset>, kRoles.size()>;

/// Runs `work`, in which a failure of HDF5 means that the file is damaged. @throws DamagedCheckpoint
void reading(const std::filesystem::path& file, const std::function<void()>& work);

/// Creates or replaces a file. @param metadata_block_bytes metadata is kept together in blocks of this size
/// @throws UserError as hdf5::create_file()
io::hdf5::File create_checkpoint(const std::filesystem::path& path, const FileSettings& settings,
                                 std::int64_t metadata_block_bytes);
/// Opens such a file again, to write attributes. @throws hdf5::Failure
io::hdf5::File open_checkpoint(const std::filesystem::path& path);
/// Creates /state and the attributes, but for those of the checksums.
void write_attributes(hid_t file, const CheckpointSummary& about);
/// @throws UserError naming what is missing
TrainingState read_state(hid_t file);

/// Checks the root attributes. @throws UserError if this is no checkpoint, or one of a later version
void require_checkpoint(hid_t file, const std::filesystem::path& path);

/// Creates the groups and datasets, with storage but without writing to it. Where no tensor has moments there
/// is no group /optimizer. @param moments their dtype: float32 or bfloat16
Datasets create_datasets(hid_t file, const std::vector<TensorInfo>& tensors, DType moments);
Datasets open_datasets(hid_t file, const std::vector<TensorInfo>& tensors);
/// Of an element of a role's datasets in a new file.
inline std::int64_t element_bytes_of(std::size_t role, DType moments) {
  return size_of(role < kRolesWithoutOptimizer ? DType::float32 : moments);
}
/// float32 or, moments, bfloat16. @throws UserError if it is neither
DType stored_dtype(const Role& role, hid_t dataset);
/// Calls it with each dataset of a role, in alphabetical order. @throws UserError if something else is there
void for_each_stored(hid_t file, const Role& role,
                     const std::function<void(const std::string& name, hid_t dataset)>& use);
/// Names and shapes of a role's datasets, in alphabetical order. @throws UserError as stored_dtype()
std::vector<TensorInfo> list_datasets(hid_t file, const Role& role);
/// Sets `optimizer` of each tensor to whether the file has moments of that name.
void find_moments(hid_t file, std::vector<TensorInfo>& tensors);
/// bfloat16 if the file has moments that are.
DType moments_of(hid_t file);

/// More bytes than the metadata of such a file takes: what HDF5 keeps together in one block, and with what it
/// keeps elsewhere.
std::int64_t metadata_block_bytes(const std::vector<TensorInfo>& tensors, const CheckpointTexts& texts,
                                  std::int64_t checksum_block_elements);
std::int64_t metadata_bytes(const std::vector<TensorInfo>& tensors, const CheckpointTexts& texts,
                            std::int64_t checksum_block_elements);

}  // namespace llampi::checkpoint
