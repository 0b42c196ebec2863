// SPDX-License-Identifier: Apache-2.0
// Writing a checkpoint. Rank 0 alone lays the file out with HDF5, which knows then where the values of each
// tensor belong; all ranks write values to their places, each by itself; rank 0 adds everything else.
//
// So no rank waits inside of HDF5 or MPI-IO for another one, whose disk may be full: a failure of a rank is
// known to all before the next step. And what HDF5 does takes as long for a thousand ranks as for one. With FileIo::hdf5 the
// values, and they alone, go through parallel HDF5: the file has the same bytes.
#include "checkpoint/save.hpp"

#include <fmt/format.h>
#include <llampi_version.h>

#include <cerrno>
#include <functional>

#include "checkpoint/frame.hpp"
#include "checkpoint/node_ranks.hpp"
#include "checkpoint/tensor_list.hpp"
#include "checkpoint/tensor_parts.hpp"
#include "checkpoint/transfer_together.hpp"
#include "checkpoint/write_values.hpp"
#include "llampi/checkpoint/room.hpp"
#include "llampi/checkpoint/staging.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/common_failure.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/on_rank_0.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/mix.hpp"
#include "llampi/core/text.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/removed_on_signal.hpp"
#include "llampi/io/shared_file.hpp"
#include "llampi/io/temporary_file.hpp"
#include "llampi/version.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;

/// All that one save needs to know.
struct Job {
  comm::World& world;
  const NodeRanks& ranks;
  fs::path file, temporary;
  CheckpointSummary about;  // rank 0's counts, but for the tensors; `optimizer`: its moments are written
  const SaveOptions& options;
  /// This rank's; returns their sums.
  std::function<std::vector<io::RangeSum>(const Places&)> write_values;
  std::function<void()> place;  // rank 0: gives the file its name; null: replaces any file of that name
  const char* other_place = "set {folder} to another place";  // what to do without room here
};

/// 40 mixed bits of an element's index: sums of eight million fit an int64.
std::int64_t mix(std::int64_t index) {
  return static_cast<std::int64_t>(mix_bits(static_cast<std::uint64_t>(index) + 0x9E3779B97F4A7C15U) >> 24);
}

/// Checks that each element is in exactly one piece. Walking along a tensor, the number of pieces above an
/// element changes by the pieces that begin there less those that end there; if beginnings and ends cancel
/// everywhere but at the tensor's own ends, it is one throughout. The sums are over mixed indices, so that
/// different places do not cancel.
void require_full_coverage(comm::World& world, const std::vector<TensorInfo>& tensors,
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
std::vector<TensorInfo> tensors_to_write(comm::World& world, std::vector<TensorInfo> tensors,
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

/// Before anything is written: HDF5 crashes when the program ends if it could not write all of a file.
void require_free_space(const Job& job, const fs::path& folder) {
  // If the free space is not known, the save is tried: if it is short, writing fails.
  const auto free = free_bytes(folder);
  const std::int64_t needed = checkpoint_bytes(job.about.tensors, job.about.texts, job.options);
  if (const auto most = most_bytes_of_a_file(); most && needed > *most) {
    throw io::FileError(fmt::format("it needs {}, and no file of this process may be larger than {}",
                                    format_bytes(needed), format_bytes(*most)),
                        EFBIG);
  }
  if (free && needed > *free)
    throw io::FileError(
        fmt::format("it needs {}, and {} are free", format_bytes(needed), format_bytes(*free)), ENOSPC);
}

/// Rank 0: an empty file, if there may be one.
void create_temporary(const Job& job) {
  const fs::path folder = job.file.has_parent_path() ? job.file.parent_path() : fs::path(".");
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw_user_error("{}: no such folder", folder.string());
  if (fs::is_directory(job.file, error)) throw_user_error("there is a folder of that name");
  fs::remove(job.temporary, error);  // left by a job that was killed
  if (job.options.check_free_space) require_free_space(job, folder);
  io::SharedFile::create(job.temporary, {job.options.file.stripes, job.options.file.stripe_bytes});
}

/// Finds the cause of a failed write. MPI-IO reports every cause as "input/output error"; a plain write at the end of the file usually
/// fails for the same reason, and the operating system names it. @throws UserError with that reason if it fails
void write_more(const fs::path& file) {
  const auto out = io::PosixFile::open_for_writing(file);
  out.write_at(out.size(), std::vector<std::byte>(1 << 20));
  out.sync();
}

/// What is wrong with that which is converted, and not with the checkpoint.
class SourceError : public UserError {
 public:
  using UserError::UserError;
};

void read_source(const WeightsSource& source, int tensor, std::int64_t begin, std::span<float> values) try {
  source.read(tensor, begin, std::ssize(values), values.data());
} catch (const UserError& error) {
  throw SourceError(error.what());
}

std::vector<io::RangeSum> write_converted(comm::World& world, const ValuesToWrite& values,
                                          const WeightsSource& source) {
  ValueWriter writer(values);
  const std::int64_t most = values.options.file.transfer_elements;
  std::vector<float> buffer(static_cast<std::size_t>(most));
  TensorParts parts(world.rank(), world.size(), most);
  for (int t = 0; t < static_cast<int>(values.tensors.size()); ++t) {
    const auto& shape = values.tensors[static_cast<std::size_t>(t)].shape;
    parts.next(elements_of(shape), [&](std::int64_t begin, std::int64_t count) {
      const auto read = std::span(buffer).first(static_cast<std::size_t>(count));
      read_source(source, t, begin, read);
      writer.write(0, t, begin, read);
    });
  }
  return writer.finish();
}

/// What to do about a failure there.
std::string remedy_for(const UserError& failure, const char* other_place) {
  const auto* const of_file = dynamic_cast<const io::FileError*>(&failure);
  const int error = of_file != nullptr ? of_file->error_number() : 0;
  if (error == EFBIG) return "raise the limit with `ulimit -f unlimited`";
  if (error == ENOSPC || error == EDQUOT) return std::string("make room there, or ") + other_place;
  return (error == EACCES ? "allow it there, or " : "") + std::string(other_place);
}

/// What the user can mend (a full disk, no permission) is told in one sentence with the remedy.
void explained(const Job& job, const std::function<void()>& work) {
  try {
    try {
      work();
    } catch (const CallError&) {
      std::error_code ignored;
      if (fs::exists(job.temporary, ignored)) write_more(job.temporary);
      throw;
    }
  } catch (const SourceError&) {
    throw;
  } catch (const OutOfMemory&) {  // no other place would help
    throw;
  } catch (const UserError& error) {
    throw ConfigError(
        {.problem = fmt::format("cannot write the checkpoint {}: {}", job.file.string(), error.what()),
         .remedy = remedy_for(error, job.other_place)});
  }
}

/// Returns the sums of what this rank wrote.
std::vector<io::RangeSum> write_values(const Job& job, const Places& places) {
  std::vector<io::RangeSum> sums;
  comm::agree(job.world, [&] { explained(job, [&] { sums = job.write_values(places); }); });
  return sums;
}

/// Collective; told as explained() does.
void explained_on_rank_0(const Job& job, const std::function<void()>& work) {
  comm::on_rank_0(job.world, [&] { explained(job, work); });
}

void write_temporary(const Job& job) {
  Frame frame;
  explained_on_rank_0(job, [&] {
    create_temporary(job);
    frame = Frame(job.about, job.options.file, job.options.block_elements);
    if (job.options.file.io == FileIo::hdf5) frame.lay_out(job.temporary);
  });
  Places places = frame.places();
  for (auto& role : places) role = broadcast_value(job.world, role);
  const Checksums blocks = checksums_for(job.about.tensors, job.options.block_elements, job.about.moments);
  auto sums = job.ranks.gather(write_values(job, places), [&](std::vector<io::RangeSum> of_group) {
    auto combined = blocks.combine(std::move(of_group));
    combined.whole.insert(combined.whole.end(), combined.parts.begin(), combined.parts.end());
    return std::move(combined.whole);
  });
  explained_on_rank_0(job, [&] {
    frame.complete(job.about, std::move(sums));
    const auto out = io::PosixFile::open_for_writing(job.temporary);
    frame.write_to(out);
    out.sync();
  });
}

void save(const Job& job) {
  const auto error = comm::common_failure([&] {
    write_temporary(job);
    if (!job.place) return explained_on_rank_0(job, [&] { io::rename_into_place(job.temporary, job.file); });
    comm::on_rank_0(job.world, job.place);
  });
  if (!error) return;
  std::error_code ignored;
  if (job.world.rank() == 0) fs::remove(job.temporary, ignored);
  job.world.barrier();
  std::rethrow_exception(error);
}

Job make_job(comm::World& world, const NodeRanks& ranks, const fs::path& file,
             std::vector<TensorInfo> tensors, const TrainingState& state, const CheckpointTexts& texts,
             const SaveOptions& options) {
  fs::path temporary = file;
  temporary += ".tmp";
  return {.world = world,
          .ranks = ranks,
          .file = file,
          .temporary = temporary,
          .about = {.state = state,
                    .texts = texts,
                    .program_version = kVersion,
                    .git_sha = LLAMPI_GIT_SHA,
                    .created = utc_now(),
                    .tensors = std::move(tensors),
                    .moments = options.file.moments},
          .options = options,
          .write_values = {},
          .place = {}};
}

int writers_of_node(const comm::World& world, const FileSettings& settings) {
  // ROMIO writes through one rank of a node in any case, and what it does takes longer the more ranks take part.
  const int most = settings.io == FileIo::hdf5 ? 8 : 256;
  return groups_per_node(settings.writers_per_node, most, world.topology());
}

/// Whether it is a checkpoint of `llampi import`. One that training wrote has a later step, moments or a run's configuration.
bool was_imported(const fs::path& file) {
  try {
    const auto about = read_checkpoint_summary(file);
    return about.state.step == 0 && !about.has_optimizer && about.texts.run_config.empty();
  } catch (const Error&) {  // no checkpoint, or damaged
    return false;
  }
}

}  // namespace

void require_available(FileIo io) {
  if (io != FileIo::hdf5 || io::hdf5::is_parallel()) return;
  throw ConfigError(
      {.field = "io",
       .value = "hdf5",
       .problem = "needs parallel HDF5, and this llampi was built with one that is not",
       .remedy = "use direct, or build llampi with parallel HDF5 (Debian: libhdf5-openmpi-dev)"});
}

Writers::Writers() = default;
Writers::~Writers() = default;

const NodeRanks& Writers::of(comm::World& world, const FileSettings& settings) {
  const int groups = writers_of_node(world, settings);
  if (!ranks_) {
    ranks_ = std::make_unique<NodeRanks>(world, groups);
    world_ = &world, groups_ = groups;
  }
  require(world_ == &world && groups_ == groups, "writers that were kept for other saves");
  return *ranks_;
}

void save_checkpoint(comm::World& world, device::Runtime& device, const fs::path& file,
                     const CheckpointData& content, const SaveOptions& options) {
  comm::agree(world, [&] {
    require_available(options.file.io);
    require(options.file.moments == DType::float32 || options.file.moments == DType::bfloat16,
            "moments are stored in float32 or bfloat16");
    require_valid_pieces(content.tensors, content.pieces);
  });
  require_full_coverage(world, content.tensors, content.pieces);
  const auto writers = options.file.writers ? options.file.writers : std::make_shared<Writers>();
  const NodeRanks& ranks = writers->of(world, options.file);
  Job job = make_job(world, ranks, file, tensors_to_write(world, content.tensors, content.pieces),
                     content.state, content.texts, options);
  job.write_values = [&](const Places& places) {
    const auto& tensors = job.about.tensors;
    if (options.file.io == FileIo::hdf5) {
      return write_together({world, ranks, device, job.temporary, tensors, content.pieces, places,
                             options.file.transfer_elements, options.block_elements, options.file.progress});
    }
    return write_pieces(device, ranks, {job.temporary, tensors, content.pieces, places, options});
  };
  save(job);
}

void save_checkpoint(comm::World& world, device::Runtime& device, const fs::path& file,
                     const CheckpointData& content, const FileSettings& settings) {
  SaveOptions options;
  options.file = settings;
  save_checkpoint(world, device, file, content, options);
}

void import_weights(comm::World& world, const WeightsSource& source, const fs::path& checkpoint,
                    const CheckpointTexts& texts, bool overwrite) {
  const io::OutputFile output{io::follow_links(checkpoint), "a checkpoint that llampi import wrote",
                              was_imported, overwrite};
  comm::agree(world, [&] { output.check(); });
  auto tensors = source.tensors();
  for (auto& tensor : tensors) tensor.optimizer = false;
  const SaveOptions options;
  const NodeRanks ranks(world, writers_of_node(world, options.file));
  Job job = make_job(world, ranks, output.path, std::move(tensors), {}, texts, options);
  job.other_place = "name another --output";
  job.write_values = [&](const Places& places) {
    return write_converted(world, {job.temporary, job.about.tensors, {}, places, options}, source);
  };
  job.temporary = world.broadcast(io::temporary_beside(output.path).string(), 0);
  job.place = [&] { output.place(job.temporary); };
  const io::RemovedOnSignal removed(world.rank() == 0 ? std::vector{job.temporary} : std::vector<fs::path>());
  save(job);
}

}  // namespace llampi::checkpoint
