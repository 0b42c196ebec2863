// Writing a checkpoint. Ranks do three kinds of things: what only rank 0 does, what HDF5 wants from all ranks
// together (the file and its metadata), and the values, which each rank writes by itself.
//
// The values are written independently, not collectively, because HDF5 and MPI-IO go on with collective calls
// after a write: a rank whose write failed (full disk) leaves them, and the others wait for ever. Nothing is
// lost: a rank's pieces are long runs of bytes in the file. So a failure of a rank is known to all before the
// next collective call.
#include "checkpoint/save.hpp"

#include <fmt/chrono.h>
#include <llampi_version.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>

#include "checkpoint/checksums.hpp"
#include "checkpoint/staging.hpp"
#include "checkpoint/tensor_list.hpp"
#include "checkpoint/transfer.hpp"
#include "comm/mpi/mpi_world.hpp"
#include "data/posix_file.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

/// All that one save needs to know.
struct Job {
  World& world;
  fs::path file, temporary;
  std::vector<TensorInfo> tensors;  // `optimizer`: its moments are written
  CheckpointSummary about;          // all of it but the tensors
  const SaveOptions& options;
  /// Writes this rank's values into the open file and returns their sums.
  std::function<std::vector<RangeSum>(const Job&, const Datasets&)> write_values;
};

/// Mixes the bits of an element's index (the finalizer of SplitMix64), 40 bits: sums of eight million fit an
/// int64.
std::int64_t mix(std::int64_t index) {
  auto z = static_cast<std::uint64_t>(index) + 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return static_cast<std::int64_t>((z ^ (z >> 31)) >> 24);
}

/// Checks that each element is in exactly one piece. Walking along a tensor, the number of pieces above an
/// element changes by the pieces that begin there less those that end there; if beginnings and ends cancel
/// everywhere but at the tensor's own ends, it is one throughout. The sums are over mixed indices, so that
/// different places do not cancel.
void require_full_coverage(World& world, const std::vector<TensorInfo>& tensors,
                           const std::vector<TensorPiece>& pieces) {
  std::vector<std::int64_t> sums(tensors.size(), 0);
  for (const auto& piece : pieces)
    sums[piece.tensor] += mix(piece.begin) - mix(piece.begin + piece.elements());
  world.sum(sums);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (sums[i] == mix(0) - mix(elements_of(tensors[i].shape))) continue;
    throw Error(fmt::format("internal error: the ranks' pieces of {} do not cover each element once",
                            tensors[i].name));
  }
}

/// The tensors, with `optimizer` only if there are moments at all. Pieces must have them where `optimizer`
/// says so, or all pieces of all ranks have none.
std::vector<TensorInfo> tensors_to_write(World& world, std::vector<TensorInfo> tensors,
                                         const std::vector<TensorPiece>& pieces) {
  std::int64_t found[3] = {0, 0, 0};
  auto& [with, without, unexpected] = found;
  for (const auto& piece : pieces) {
    if (piece.elements() == 0) continue;
    const bool has_moments{piece.exp_avg};
    if (tensors[piece.tensor].optimizer) {
      (has_moments ? with : without) = 1;
    } else if (has_moments) {
      unexpected = 1;
    }
  }
  world.max(std::span<std::int64_t>(found));
  require(unexpected == 0, "a piece with optimizer state of a tensor that has none");
  require(with + without < 2, "pieces with and without optimizer state");
  if (with == 0) {
    for (auto& tensor : tensors) tensor.optimizer = false;
  }
  return tensors;
}

/// The bytes of a state on rank 0: metadata must be the same on all ranks.
TrainingState from_rank_0(World& world, const TrainingState& state) {
  static_assert(std::is_trivially_copyable_v<TrainingState>);
  const std::string bytes = world.broadcast({reinterpret_cast<const char*>(&state), sizeof state}, 0);
  TrainingState result;
  std::memcpy(&result, bytes.data(), sizeof result);
  return result;
}

std::string now_utc() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
}

std::int64_t metadata_bytes_of(const Job& job) {
  return metadata_bytes(job.tensors, job.about.texts, job.options.block_elements);
}

std::int64_t needed_bytes(const Job& job) {
  std::int64_t bytes = metadata_bytes_of(job);
  for (const auto& tensor : job.tensors) {
    bytes += static_cast<std::int64_t>(roles_of(tensor)) *
             (elements_of(tensor.shape) * static_cast<std::int64_t>(sizeof(float)) +
              job.options.hdf5.alignment_bytes);
  }
  return bytes;
}

void require_free_space(const Job& job, const fs::path& folder) {
  struct statvfs status {};
  // No number (not every file system has one) is no reason to refuse; if the space is short, writing tells.
  if (::statvfs(folder.c_str(), &status) != 0 || status.f_blocks == 0) return;
  const auto free = static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
  const std::int64_t needed = needed_bytes(job);
  if (needed > free)
    throw_user_error("it needs {}, and {} are free", format_bytes(needed), format_bytes(free));
}

/// Rank 0: everything that can be known to fail before HDF5 is at it, because an HDF5 file whose metadata
/// cannot be written can neither be closed nor left open. So this writes as many bytes as the metadata takes.
void prepare(const Job& job) {
  const fs::path folder = job.file.has_parent_path() ? job.file.parent_path() : fs::path(".");
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw_user_error("there is no folder {}", folder.string());
  if (fs::is_directory(job.file, error)) throw_user_error("there is a folder of that name");
  fs::remove(job.temporary, error);  // left by a job that was killed
  if (job.options.check_free_space) require_free_space(job, folder);
  const auto probe = PosixFile::create(job.temporary);
  probe.write_at(0, std::vector<std::byte>(static_cast<std::size_t>(metadata_bytes_of(job))));
  probe.sync();
}

/// MPI-IO says "input/output error" whatever the cause; the operating system gives the cause to who writes
/// behind the file's end. @throws UserError with it, if it fails too
void write_more(const fs::path& file) {
  const auto out = PosixFile::open_for_writing(file);
  out.write_at(out.size(), std::vector<std::byte>(1 << 20));
  out.sync();
}

std::vector<RangeSum> write_pieces(const Job& job, const Datasets& datasets, Device& device,
                                   const std::vector<TensorPiece>& pieces) {
  std::vector<RangeSum> sums;
  Staging staging(device, job.options.hdf5.transfer_elements);
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    for (const auto& piece : pieces) {
      const auto& tensor = job.tensors[piece.tensor];
      if (role >= roles_of(tensor)) continue;
      staging.in_parts(piece.*kRoles[role].values, [&](const Tensor& part, std::int64_t begin) {
        staging.fetch(part);
        write_range(datasets[role][piece.tensor].id(), tensor.shape, piece.begin + begin, part.elements(),
                    staging.values());
        add_sums(sums, dataset_index(role, piece.tensor, job.tensors.size()), piece.begin + begin,
                 {staging.values(), static_cast<std::size_t>(part.elements())}, job.options.block_elements);
      });
    }
  }
  return sums;
}

/// Parts of all tensors, dealt out over the ranks like cards.
std::vector<RangeSum> write_converted(const Job& job, const Datasets& datasets, const WeightsSource& source) {
  std::vector<RangeSum> sums;
  const std::int64_t most = job.options.hdf5.transfer_elements;
  std::vector<float> values(static_cast<std::size_t>(most));
  std::int64_t part = 0;
  for (int t = 0; t < static_cast<int>(job.tensors.size()); ++t) {
    const auto& shape = job.tensors[t].shape;
    const std::int64_t elements = elements_of(shape);
    for (std::int64_t begin = 0; begin < elements; begin += most, ++part) {
      if (part % job.world.size() != job.world.rank()) continue;
      const std::int64_t count = std::min(most, elements - begin);
      source.read(t, begin, count, values.data());
      write_range(datasets[0][t].id(), shape, begin, count, values.data());
      add_sums(sums, dataset_index(0, t, job.tensors.size()), begin, std::span(values).first(count),
               job.options.block_elements);
    }
  }
  return sums;
}

/// agree(), in which what the user can mend (a full disk, no permission) is told in one sentence with the
/// remedy.
void agree_on(const Job& job, const std::function<void()>& work) {
  const auto explained = [&] {
    try {
      work();
    } catch (const hdf5::Failure& failure) {
      if (!failure.storage_problem().empty()) throw UserError(failure.storage_problem());
      write_more(job.temporary);
      throw;
    }
  };
  agree(job.world, [&] {
    try {
      explained();
    } catch (const UserError& error) {
      throw_user_error("cannot write the checkpoint {}: {}; make room there, or set run.dir to another place",
                       job.file.string(), error.what());
    }
  });
}

void write_temporary(const Job& job) {
  const auto flush = [](const hdf5::File& file) {
    const Hdf5Lock lock;
    hdf5::check(H5Fflush(file.id(), H5F_SCOPE_GLOBAL), "H5Fflush");
  };
  hdf5::File out;
  Datasets datasets;
  std::vector<RangeSum> sums;
  Checksums checksums = checksums_for(job.tensors, job.options.block_elements);
  try {
    agree_on(job, [&] {
      // All metadata in one block: spread between the values, MPI-IO would write the bytes between its parts
      // as well, and they may have no room.
      const auto access =
          parallel_access(mpi_communicator(job.world), job.options.hdf5,
                          metadata_block_bytes(job.tensors, job.about.texts, job.options.block_elements));
      out = create_checkpoint(job.temporary, access.id());
      write_attributes(out.id(), job.about);
      datasets = create_datasets(out.id(), job.tensors);
      create_checksums(out.id(), datasets, checksums);
      flush(out);  // while there is room for the metadata
    });
    agree_on(job, [&] {
      sums = job.write_values(job, datasets);
      // Some file systems notice only now that the space is short.
      PosixFile::open_for_writing(job.temporary).sync();
    });
    sums = gather(job.world, sums);
    agree_on(job, [&] {
      set_blocks(checksums, combine(std::move(sums), checksums.elements(), checksums.block_elements).whole);
      write_checksums(out.id(), datasets, checksums, metadata_checksum(job.about, checksums));
      datasets = {};
      flush(out);
      out.close();
    });
  } catch (...) {
    // Closing writes metadata again; giving the values' space back makes room for it. All ranks are here:
    // agree() saw to it.
    if (job.world.rank() == 0 && ::truncate(job.temporary.c_str(), 0) != 0) {
      // Then closing may fail too; there is nothing better to do.
    }
    job.world.barrier();
    throw;
  }
}

void save(const Job& job) {
  const auto on_rank_0 = [&](const std::function<void()>& work) {
    agree_on(job, [&] {
      if (job.world.rank() == 0) work();
    });
  };
  try {
    on_rank_0([&] { prepare(job); });
    write_temporary(job);
    // A sync per node, each rank's being the simple way to it; almost nothing is left to write.
    agree_on(job, [&] { PosixFile::open_for_writing(job.temporary).sync(); });
    on_rank_0([&] { rename_into_place(job.temporary, job.file); });
  } catch (...) {
    std::error_code ignored;
    if (job.world.rank() == 0) fs::remove(job.temporary, ignored);
    job.world.barrier();
    throw;
  }
}

Job make_job(World& world, const fs::path& file, std::vector<TensorInfo> tensors, const TrainingState& state,
             const CheckpointTexts& texts, const SaveOptions& options) {
  fs::path temporary = file;
  temporary += ".tmp";
  return {.world = world,
          .file = file,
          .temporary = temporary,
          .tensors = std::move(tensors),
          .about = {.state = from_rank_0(world, state),
                    .texts = {world.broadcast(texts.model_config, 0), world.broadcast(texts.run_config, 0)},
                    .program_version = LLAMPI_VERSION,
                    .git_sha = LLAMPI_GIT_SHA,
                    .created = world.broadcast(now_utc(), 0),
                    .tensors = {}},
          .options = options,
          .write_values = {}};
}

}  // namespace

void save_checkpoint(World& world, Device& device, const fs::path& file,
                     const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                     const TrainingState& state, const CheckpointTexts& texts, const SaveOptions& options) {
  agree(world, [&] { require_valid_pieces(tensors, pieces); });
  require_full_coverage(world, tensors, pieces);
  Job job = make_job(world, file, tensors_to_write(world, tensors, pieces), state, texts, options);
  job.write_values = [&](const Job& self, const Datasets& datasets) {
    return write_pieces(self, datasets, device, pieces);
  };
  save(job);
}

void save_checkpoint(World& world, Device& device, const fs::path& file,
                     const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                     const TrainingState& state, const CheckpointTexts& texts) {
  save_checkpoint(world, device, file, tensors, pieces, state, texts, SaveOptions{});
}

void import_weights(World& world, const WeightsSource& source, const fs::path& checkpoint,
                    const CheckpointTexts& texts) {
  auto tensors = source.tensors();
  for (auto& tensor : tensors) tensor.optimizer = false;
  const SaveOptions options;
  Job job = make_job(world, checkpoint, std::move(tensors), {}, texts, options);
  job.write_values = [&](const Job& self, const Datasets& datasets) {
    return write_converted(self, datasets, source);
  };
  save(job);
}

}  // namespace llampi
