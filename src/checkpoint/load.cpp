#include <algorithm>
#include <functional>

#include "checkpoint/schema.hpp"
#include "checkpoint/tensor_list.hpp"
#include "checkpoint/transfer.hpp"
#include "comm/mpi/mpi_world.hpp"
#include "llampi/core/error.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

/// Runs `work`, in which a failure of HDF5 means that the file is damaged.
void reading(const fs::path& file, const std::function<void()>& work) {
  try {
    work();
  } catch (const hdf5::Failure& failure) {
    throw_user_error("{} is damaged and cannot be read ({}); use another checkpoint", file.string(),
                     failure.reason());
  }
}

/// Rank 0, before all open the file: everything that is wrong with it shows here, at one rank.
void check_file(const fs::path& path, std::size_t roles, const std::vector<TensorInfo>& tensors) {
  const Hdf5Lock lock;
  const auto file = hdf5::open_file(path);
  require_checkpoint(file.id(), path);
  read_state(file.id());
  if (roles > kRolesWithoutOptimizer && !hdf5::has_link(file.id(), "optimizer")) {
    throw_user_error("{} has no optimizer state to continue with; start a run from it with model.weights",
                     path.string());
  }
  for (std::size_t role = 0; role < roles; ++role) {
    require_same_tensors(fmt::format("/{} in {}", kRoles[role].group, path.string()), tensors,
                         list_datasets(file.id(), kRoles[role]));
  }
}

void read_values(const std::vector<std::vector<hdf5::Dataset>>& datasets,
                 const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                 std::int64_t most) {
  for (std::size_t role = 0; role < datasets.size(); ++role) {
    for (const auto& piece : pieces) {
      float* values = piece.*kRoles[role].values;
      if (values == nullptr) continue;
      for (std::int64_t done = 0; done < piece.elements; done += most) {
        read_range(datasets[role][piece.tensor].id(), tensors[piece.tensor].shape, piece.begin + done,
                   std::min(most, piece.elements - done), values + done);
      }
    }
  }
}

}  // namespace

TrainingState load_checkpoint(World& world, const fs::path& path, const std::vector<TensorInfo>& tensors,
                              const std::vector<TensorPiece>& pieces) {
  agree(world, [&] { require_valid_pieces(tensors, pieces); });
  std::int64_t with_moments = std::any_of(pieces.begin(), pieces.end(),
                                          [](const TensorPiece& piece) { return piece.exp_avg != nullptr; });
  world.max(std::span<std::int64_t>(&with_moments, 1));
  const std::size_t roles = with_moments != 0 ? kRoles.size() : kRolesWithoutOptimizer;

  agree(world, [&] {
    if (world.rank() == 0) reading(path, [&] { check_file(path, roles, tensors); });
  });

  const Hdf5Settings settings;
  TrainingState state;
  hdf5::File file;
  std::vector<std::vector<hdf5::Dataset>> datasets;
  agree(world, [&] {
    reading(path, [&] {
      file = hdf5::open_file(path, parallel_access(mpi_communicator(world), settings).id());
      state = read_state(file.id());
      datasets = open_datasets(file.id(), roles, tensors);
    });
  });
  agree(world,
        [&] { reading(path, [&] { read_values(datasets, tensors, pieces, settings.transfer_elements); }); });
  return state;
}

}  // namespace llampi
