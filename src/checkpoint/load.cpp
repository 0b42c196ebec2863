#include <algorithm>
#include <functional>

#include "checkpoint/checksums.hpp"
#include "checkpoint/staging.hpp"
#include "checkpoint/tensor_list.hpp"
#include "checkpoint/transfer.hpp"
#include "comm/mpi/mpi_world.hpp"
#include "llampi/core/error.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

/// agree() that keeps a DamagedCheckpoint what it is.
void agree_on_reading(World& world, const fs::path& file, const std::function<void()>& work) {
  std::int64_t damaged = 0;
  try {
    agree(world, [&] {
      try {
        reading(file, work);
      } catch (const DamagedCheckpoint&) {
        damaged = 1;
        throw;
      }
    });
  } catch (const UserError& error) {  // on all ranks
    world.max(std::span(&damaged, 1));
    if (damaged != 0) throw DamagedCheckpoint(error.what());
    throw;
  }
}

/// The tensors, with `optimizer` where a piece of any rank has room for moments.
std::vector<TensorInfo> tensors_to_read(World& world, std::vector<TensorInfo> tensors,
                                        const std::vector<TensorPiece>& pieces) {
  std::vector<std::int64_t> asked(tensors.size(), 0);
  for (const auto& piece : pieces) {
    if (piece.exp_avg) asked[piece.tensor] = 1;
  }
  world.max(asked);
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].optimizer = asked[i] != 0;
  return tensors;
}

/// Checks the moments in the file, and that those of `tensors` are among them. Takes `optimizer` from those
/// that the file does not have, if they may be missing.
void check_moments(hid_t file, const fs::path& path, std::vector<TensorInfo>& tensors, bool may_be_missing) {
  if (std::none_of(tensors.begin(), tensors.end(), [](const TensorInfo& t) { return t.optimizer; })) return;
  if (!hdf5::has_link(file, "optimizer")) {
    throw_user_error("{} has no optimizer state to continue with; start a run from it with model.weights",
                     path.string());
  }
  auto stored = tensors;
  find_moments(file, stored);
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].optimizer && !stored[i].optimizer) missing.push_back(tensors[i].name);
    tensors[i].optimizer = tensors[i].optimizer && stored[i].optimizer;
  }
  std::erase_if(stored, [](const TensorInfo& tensor) { return !tensor.optimizer; });
  for (std::size_t role = kRolesWithoutOptimizer; role < kRoles.size(); ++role) {
    require_same_tensors(fmt::format("/{} in {}", kRoles[role].group, path.string()), stored,
                         list_datasets(file, kRoles[role]));
  }
  if (missing.empty() || may_be_missing) return;
  throw_user_error(
      "{} has no optimizer state of {}, frozen when it was written; with run.resume_with_changes = true "
      "their moments start from zero",
      path.string(), names_text(missing));
}

/// Rank 0, before all open the file: everything that is wrong with it shows here, at one rank.
void check_file(const fs::path& path, std::vector<TensorInfo>& tensors, bool moments_may_be_missing) {
  const Hdf5Lock lock;
  const auto file = hdf5::open_file(path);
  read_metadata(file.id(), path);
  require_same_tensors(fmt::format("/{} in {}", kRoles[0].group, path.string()), tensors,
                       list_datasets(file.id(), kRoles[0]));
  check_moments(file.id(), path, tensors, moments_may_be_missing);
}

/// Every rank's `optimizer` becomes rank 0's.
void share_from_rank_0(World& world, std::vector<TensorInfo>& tensors) {
  std::string flags;
  for (const auto& tensor : tensors) flags += tensor.optimizer ? '1' : '0';
  flags = world.broadcast(flags, 0);
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].optimizer = flags[i] == '1';
}

/// Returns the sums of what was read, if the file has checksums.
std::vector<RangeSum> read_values(Device& device, const Datasets& datasets, const Checksums& checksums,
                                  const std::vector<TensorInfo>& tensors,
                                  const std::vector<TensorPiece>& pieces, std::int64_t most) {
  std::vector<RangeSum> sums;
  Staging staging(device, most);
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    for (const auto& piece : pieces) {
      const auto& tensor = tensors[piece.tensor];
      const auto& dataset = datasets[role][piece.tensor];
      staging.in_parts(piece.*kRoles[role].values, [&](const Tensor& part, std::int64_t begin) {
        if (dataset) {
          read_range(dataset.id(), tensor.shape, piece.begin + begin, part.elements(), staging.values());
          if (checksums) {
            add_sums(sums, dataset_index(role, piece.tensor, tensors.size()), piece.begin + begin,
                     {staging.values(), static_cast<std::size_t>(part.elements())}, checksums.block_elements);
          }
        } else {
          std::fill_n(staging.values(), part.elements(), 0.0F);
        }
        staging.store(part);
      });
    }
  }
  return sums;
}

/// Compares the blocks that these ranges cover, and returns the other ranges. @throws DamagedCheckpoint
std::vector<RangeSum> compare(const fs::path& path, const Checksums& checksums, std::vector<RangeSum> sums) {
  if (!checksums) return {};
  BlockSums blocks = combine(std::move(sums), checksums.elements(), checksums.block_elements);
  require_right(path, checksums, blocks.whole);
  return std::move(blocks.parts);
}

}  // namespace

TrainingState load_checkpoint(World& world, Device& device, const fs::path& path,
                              const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                              bool missing_moments_are_zero) {
  agree(world, [&] { require_valid_pieces(tensors, pieces); });
  auto in_file = tensors_to_read(world, tensors, pieces);
  agree_on_reading(world, path, [&] {
    if (world.rank() == 0) check_file(path, in_file, missing_moments_are_zero);
  });
  share_from_rank_0(world, in_file);

  const Hdf5Settings settings;
  TrainingState state;
  hdf5::File file;
  Datasets datasets;
  Checksums checksums;
  agree_on_reading(world, path, [&] {
    file = hdf5::open_file(path, parallel_access(mpi_communicator(world), settings).id());
    state = read_state(file.id());
    datasets = open_datasets(file.id(), in_file);
    checksums = read_checksums(file.id(), datasets, in_file);
  });
  std::vector<RangeSum> parts;  // of blocks that are shared with other ranks
  agree_on_reading(world, path, [&] {
    parts = compare(path, checksums,
                    read_values(device, datasets, checksums, in_file, pieces, settings.transfer_elements));
  });
  compare(path, checksums, gather(world, parts));
  return state;
}

}  // namespace llampi
