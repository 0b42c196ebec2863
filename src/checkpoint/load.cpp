// SPDX-License-Identifier: Apache-2.0
// Reading a checkpoint. Rank 0 alone reads what HDF5 has to say of it; every rank reads its values at their
// places.
#include <hdf5.h>

#include <algorithm>
#include <functional>

#include "checkpoint/checksums.hpp"
#include "checkpoint/node_ranks.hpp"
#include "checkpoint/stored_values.hpp"
#include "checkpoint/tensor_list.hpp"
#include "checkpoint/tensor_parts.hpp"
#include "checkpoint/transfer_together.hpp"
#include "llampi/checkpoint/staging.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/first_failure.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/core/error.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Reads together with other ranks, so that a DamagedCheckpoint stays what it is. @param together agree() or on_rank_0()
void read_with(void (*together)(comm::World&, const std::function<void()>&), comm::World& world,
               const fs::path& file, const std::function<void()>& work) {
  bool damaged = false;
  try {
    together(world, [&] {
      try {
        reading(file, work);
      } catch (const DamagedCheckpoint&) {
        damaged = true;
        throw;
      }
    });
  } catch (const UserError& error) {  // on all ranks
    if (!comm::on_any_rank(world, damaged)) throw;
    const auto* parts = dynamic_cast<const ConfigError*>(&error);
    throw DamagedCheckpoint(parts != nullptr ? parts->parts() : ConfigError::Parts{.problem = error.what()});
  }
}

void agree_on_reading(comm::World& world, const fs::path& file, const std::function<void()>& work) {
  read_with(comm::agree, world, file, work);
}

/// The tensors, with `optimizer` where a piece of any rank has room for moments.
std::vector<TensorInfo> tensors_to_read(comm::World& world, std::vector<TensorInfo> tensors,
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
  if (!io::hdf5::has_link(file, "optimizer")) {
    throw ConfigError({.problem = path.string() + " has weights only, no optimizer state to continue with",
                       .remedy = "start a run with it as {weights}, in another {folder}"});
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
  throw ConfigError({.problem = fmt::format("{} has no optimizer state of {}, frozen when it was written",
                                            path.string(), names_text(missing)),
                     .remedy = "with {moments_may_be_missing} = true their moments start from zero"});
}

/// What a file says of its values.
struct Contents {
  TrainingState state;
  Places places;
  Checksums checksums;

  auto members() { return std::tie(state, places[0], places[1], places[2], checksums); }
};
static_assert(kRoles.size() == 3);

/// Rank 0: everything that is wrong with the file, but for its values, shows here.
Contents examine(const fs::path& path, std::vector<TensorInfo>& tensors, bool moments_may_be_missing) {
  const io::Hdf5Lock lock;
  const auto file = io::hdf5::open_file(path);
  const auto metadata = read_metadata(file.id(), path);
  require_same_tensors(fmt::format("/{} in {}", kRoles[0].group, path.string()), tensors,
                       metadata.summary.tensors);
  check_moments(file.id(), path, tensors, moments_may_be_missing);
  const auto datasets = open_datasets(file.id(), tensors);
  return {metadata.summary.state, places_of(file.id(), datasets), checksums_of(metadata, tensors)};
}

/// Returns the sums of what was read, if the file has checksums.
std::vector<io::RangeSum> read_values(device::Runtime& device, const StoredValues& stored,
                                      const Checksums& checksums, const std::vector<TensorPiece>& pieces,
                                      std::size_t tensors) {
  std::vector<io::RangeSum> sums;
  Encoding encoding;
  Staging staging(device, kTransferElements);
  const auto parts = parts_of(pieces, staging);
  for (std::size_t i = 0, ahead = 1; i < parts.size(); ++i) {
    const auto& [role, tensor, begin, values] = parts[i];
    const std::span room(staging.room_for(values), static_cast<std::size_t>(values.elements()));
    for (; ahead < std::min(i + 3, parts.size()); ++ahead) {  // while this one is checked and copied
      const auto& next = parts[ahead];
      stored.read_ahead(next.role, next.tensor, next.begin, next.values.elements());
    }
    if (!stored.has(role, tensor)) {
      std::fill(room.begin(), room.end(), 0.0F);
    } else {
      const auto bytes = stored.read(role, tensor, begin, room, encoding);
      if (checksums)
        io::add_sums(sums, dataset_index(role, tensor, tensors), begin, bytes,
                     stored.element_bytes(role, tensor), checksums.block_elements);
    }
    staging.store(values);
  }
  return sums;
}

/// Compares the blocks that these ranges cover, and returns the other ranges. @throws DamagedCheckpoint
std::vector<io::RangeSum> compare(const fs::path& path, const Checksums& checksums,
                                  std::vector<io::RangeSum> sums) {
  if (!checksums) return {};
  io::BlockSums blocks = checksums.combine(std::move(sums));
  require_right(path, checksums, blocks.whole);
  return std::move(blocks.parts);
}

/// How the values are read, for the log where it is not as asked.
FileIo choose_io(const fs::path& path, const Places& places, const LoadSettings& settings) {
  if (settings.io == FileIo::direct && need_hdf5(places)) {
    settings.log.info(
        "{} is chunked, compressed or converted, or has values in another file: each rank reads it through HDF5 by itself; "
        "checkpoint.io = hdf5 reads it together",
        path.string());
  }
  return settings.io;
}

}  // namespace

TrainingState load_checkpoint(comm::World& world, device::Runtime& device, const std::filesystem::path& path,
                              const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                              const LoadSettings& settings) {
  comm::agree(world, [&] {
    require_available(settings.io);
    require_valid_pieces(tensors, pieces);
  });
  auto in_file = tensors_to_read(world, tensors, pieces);
  Contents contents;
  read_with(comm::on_rank_0, world, path,
            [&] { contents = examine(path, in_file, settings.missing_moments_are_zero); });
  contents = comm::broadcast_value(world, contents);
  for (std::size_t i = 0; i < in_file.size(); ++i)
    in_file[i].optimizer = contents.places[kRolesWithoutOptimizer][i].is_there();

  const auto& checksums = contents.checksums;
  const NodeRanks ranks(world, 1);
  const FileIo io = choose_io(path, contents.places, settings);
  std::vector<io::RangeSum> parts;  // of blocks that are shared with other ranks
  agree_on_reading(world, path, [&] {
    std::vector<io::RangeSum> sums;
    if (io == FileIo::hdf5) {
      sums = read_together({world, ranks, device, path, in_file, pieces, contents.places, kTransferElements,
                            checksums.block_elements});
    } else {
      const StoredValues values(path, contents.places, in_file);
      sums = read_values(device, values, checksums, pieces, in_file.size());
    }
    parts = compare(path, checksums, std::move(sums));
  });
  comm::FirstFailure failure;  // of the first of a node, which has those of all of it
  parts = ranks.gather(parts, [&](std::vector<io::RangeSum> of_node) {
    std::vector<io::RangeSum> rest;
    failure.of([&] { rest = compare(path, checksums, std::move(of_node)); });
    return rest;
  });
  agree_on_reading(world, path, [&] {
    failure.rethrow();
    compare(path, checksums, std::move(parts));
  });
  return contents.state;
}

}  // namespace llampi::checkpoint
