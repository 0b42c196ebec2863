// The checkpoint file: names of groups, datasets and attributes, and how HDF5 is set up for it. See
// docs/formats.md.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/hdf5.hpp"
#include "llampi/checkpoint/checkpoint.hpp"

namespace llampi {

inline constexpr const char* kCheckpointFormat = "llampi-checkpoint";
inline constexpr std::int64_t kCheckpointVersion = 1;

/// A group with one dataset per tensor, and where its values are in memory.
struct Role {
  const char* group;
  float* TensorPiece::*values;
};
inline constexpr std::array<Role, 3> kRoles{{{"model", &TensorPiece::model},
                                             {"optimizer/exp_avg", &TensorPiece::exp_avg},
                                             {"optimizer/exp_avg_sq", &TensorPiece::exp_avg_sq}}};
inline constexpr std::size_t kRolesWithoutOptimizer = 1;

struct Hdf5Settings {
  /// What is at least this large begins at a multiple of `alignment_bytes`: a page, so that no two tensors
  /// share one (ranks that write neighbouring tensors do not wait for each other), at a cost of at most a
  /// page per tensor.
  std::int64_t alignment_threshold_bytes = 4096;
  std::int64_t alignment_bytes = 4096;
  /// One rank reads metadata and sends it to the others; metadata is written by all together. Without it a
  /// thousand ranks would read the same few kilobytes from the file system.
  bool collective_metadata = true;
  /// Larger ranges are read and written in several calls: MPI-IO counts bytes in an int in places.
  std::int64_t transfer_elements = std::int64_t{1} << 28;
};

/// File access properties for all ranks of a communicator together.
/// @param metadata_block_bytes metadata is kept together in blocks of this size; 0: HDF5's default
hdf5::PropertyList parallel_access(MPI_Comm communicator, const Hdf5Settings& settings,
                                   std::int64_t metadata_block_bytes = 0);

/// Creates /state and the attributes. Every rank must give the same values.
void write_attributes(hid_t file, const TrainingState& state, const CheckpointTexts& texts,
                      const std::string& created);
/// @throws UserError naming what is missing
TrainingState read_state(hid_t file);

/// Checks the root attributes. @throws UserError if this is no checkpoint, or one of a later version
void require_checkpoint(hid_t file, const std::filesystem::path& path);

/// Creates the groups of the first `roles` roles and their datasets, with storage but without writing to it:
/// [role][tensor].
std::vector<std::vector<hdf5::Dataset>> create_datasets(hid_t file, std::size_t roles,
                                                        const std::vector<TensorInfo>& tensors);
std::vector<std::vector<hdf5::Dataset>> open_datasets(hid_t file, std::size_t roles,
                                                      const std::vector<TensorInfo>& tensors);
/// Names and shapes of a role's datasets, in alphabetical order. @throws UserError if something else is there
std::vector<TensorInfo> list_datasets(hid_t file, const Role& role);

/// More bytes than the metadata of such a file takes: what HDF5 keeps together in one block, and with what it
/// keeps elsewhere.
std::int64_t metadata_block_bytes(std::size_t datasets, const CheckpointTexts& texts);
std::int64_t metadata_bytes(std::size_t datasets, const CheckpointTexts& texts);

}  // namespace llampi
