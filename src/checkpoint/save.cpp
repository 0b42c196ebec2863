// SPDX-License-Identifier: Apache-2.0
// Writing a checkpoint. Rank 0 alone lays the file out with HDF5, which knows then where the values of each
// tensor belong; all ranks write values to their places, each by itself; rank 0 adds everything else.
//
// So no rank waits inside of HDF5 or MPI-IO for another one, whose disk may be full: a failure of a rank is
// known to all before the next step. And what HDF5 does takes as long for a thousand ranks as for one.
#include "checkpoint/save.hpp"

#include <fmt/format.h>
#include <llampi_version.h>

#include <algorithm>
#include <functional>

#include "checkpoint/frame.hpp"
#include "checkpoint/tensor_list.hpp"
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
#include "llampi/core/text.hpp"
#include "llampi/io/output_file.hpp"
#include "llampi/io/posix_file.hpp"
#include "llampi/io/shared_file.hpp"
#include "llampi/io/temporary_file.hpp"
#include "llampi/version.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Job;

/// The values of a file that is being written.
class Values {
 public:
  Values(const Job& job, const Places& places);

  /// Writes elements of a tensor and keeps their sums.
  void write(std::size_t role, int tensor, std::int64_t begin, std::span<const float> values);
  const std::vector<io::RangeSum>& sums() const { return sums_; }
  /// Waits until all that this rank has written is on the disk.
  void sync();

 private:
  /// A slow disk is felt at once, and not only in the end, when nothing would seem to move for a long time.
  static constexpr std::int64_t kSyncBytes = std::int64_t{1} << 30;

  void tell_progress() const;

  const Job& job_;
  const Places& places_;
  io::SharedFile file_;
  std::int64_t unsynced_ = 0;  ///< bytes
  std::vector<io::RangeSum> sums_;
};

/// All that one save needs to know.
struct Job {
  comm::World& world;
  fs::path file, temporary;
  CheckpointSummary about;  // rank 0's counts, but for the tensors; `optimizer`: its moments are written
  const SaveOptions& options;
  std::function<void(Values&)> write_values;  // this rank's
  std::function<void()> place;                // rank 0: gives the file its name; none: whatever is there
  const char* other_place = "set {folder} to another place";  // what to do without room here
};

Values::Values(const Job& job, const Places& places) : job_(job), places_(places), file_(job.temporary) {}

void Values::write(std::size_t role, int tensor, std::int64_t begin, std::span<const float> values) {
  file_.write_at(places_[role][tensor] + begin * static_cast<std::int64_t>(sizeof(float)),
                 std::as_bytes(values));
  tell_progress();
  unsynced_ += std::ssize(values) * static_cast<std::int64_t>(sizeof(float));
  if (unsynced_ >= kSyncBytes) sync();
  io::add_sums(sums_, dataset_index(role, tensor, job_.about.tensors.size()), begin, values,
               job_.options.block_elements);
}

void Values::tell_progress() const {
  if (job_.options.file.progress) job_.options.file.progress();
}

void Values::sync() {
  file_.sync();
  tell_progress();
  unsynced_ = 0;
}

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

void require_free_space(const Job& job, const fs::path& folder) {
  // No number is no reason to refuse; if the space is short, writing tells.
  const auto free = free_bytes(folder);
  const std::int64_t needed = checkpoint_bytes(job.about.tensors, job.about.texts, job.options);
  if (free && needed > *free)
    throw_user_error("it needs {}, and {} are free", format_bytes(needed), format_bytes(*free));
}

/// Rank 0: an empty file, if there may be one.
void create_temporary(const Job& job) {
  const fs::path folder = job.file.has_parent_path() ? job.file.parent_path() : fs::path(".");
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw_user_error("there is no folder {}", folder.string());
  if (fs::is_directory(job.file, error)) throw_user_error("there is a folder of that name");
  fs::remove(job.temporary, error);  // left by a job that was killed
  if (job.options.check_free_space) require_free_space(job, folder);
  io::SharedFile::create(job.temporary, {job.options.file.stripes, job.options.file.stripe_bytes});
}

/// MPI-IO says "input/output error" whatever the cause; the operating system gives the cause to who writes
/// behind the file's end. @throws UserError with it, if it fails too
void write_more(const fs::path& file) {
  const auto out = io::PosixFile::open_for_writing(file);
  out.write_at(out.size(), std::vector<std::byte>(1 << 20));
  out.sync();
}

void write_pieces(const Job& job, Values& values, device::Runtime& device,
                  const std::vector<TensorPiece>& pieces) {
  Staging staging(device, job.options.file.transfer_elements);
  for (std::size_t role = 0; role < kRoles.size(); ++role) {
    for (const auto& piece : pieces) {
      if (role >= roles_of(job.about.tensors[piece.tensor])) continue;
      staging.in_parts(piece.*kRoles[role].values, [&](const Tensor& part, std::int64_t begin) {
        values.write(role, piece.tensor, piece.begin + begin,
                     {staging.fetch(part), static_cast<std::size_t>(part.elements())});
      });
    }
  }
}

/// Parts of all tensors, dealt out over the ranks like cards.
void write_converted(const Job& job, Values& values, const WeightsSource& source) {
  const std::int64_t most = job.options.file.transfer_elements;
  std::vector<float> buffer(static_cast<std::size_t>(most));
  std::int64_t part = 0;
  for (int t = 0; t < static_cast<int>(job.about.tensors.size()); ++t) {
    const std::int64_t elements = elements_of(job.about.tensors[t].shape);
    for (std::int64_t begin = 0; begin < elements; begin += most, ++part) {
      if (part % job.world.size() != job.world.rank()) continue;
      const std::int64_t count = std::min(most, elements - begin);
      source.read(t, begin, count, buffer.data());
      values.write(0, t, begin, std::span(buffer).first(static_cast<std::size_t>(count)));
    }
  }
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
  } catch (const UserError& error) {
    throw ConfigError(
        {.problem = fmt::format("cannot write the checkpoint {}: {}", job.file.string(), error.what()),
         .remedy = fmt::format("make room there, or {}", job.other_place)});
  }
}

/// Returns the sums of what this rank wrote.
std::vector<io::RangeSum> write_values(const Job& job, const Places& places) {
  std::vector<io::RangeSum> sums;
  comm::agree(job.world, [&] {
    explained(job, [&] {
      Values values(job, places);
      job.write_values(values);
      values.sync();  // some file systems notice only now that the space is short
      sums = values.sums();
    });
  });
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
  });
  Places places = frame.places();
  for (auto& role : places) role = broadcast_value(job.world, role);
  auto sums = gather_values(job.world, write_values(job, places));
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

Job make_job(comm::World& world, const fs::path& file, std::vector<TensorInfo> tensors,
             const TrainingState& state, const CheckpointTexts& texts, const SaveOptions& options) {
  fs::path temporary = file;
  temporary += ".tmp";
  return {.world = world,
          .file = file,
          .temporary = temporary,
          .about = {.state = state,
                    .texts = texts,
                    .program_version = kVersion,
                    .git_sha = LLAMPI_GIT_SHA,
                    .created = utc_now(),
                    .tensors = std::move(tensors)},
          .options = options,
          .write_values = {},
          .place = {}};
}

/// A checkpoint that training wrote is of a later step, or of a run.
bool was_imported(const fs::path& file) {
  try {
    const auto about = read_checkpoint_summary(file);
    return about.state.step == 0 && !about.has_optimizer && about.texts.run_config.empty();
  } catch (const Error&) {  // no checkpoint, or damaged
    return false;
  }
}

}  // namespace

void save_checkpoint(comm::World& world, device::Runtime& device, const fs::path& file,
                     const CheckpointContent& content, const SaveOptions& options) {
  comm::agree(world, [&] { require_valid_pieces(content.tensors, content.pieces); });
  require_full_coverage(world, content.tensors, content.pieces);
  Job job = make_job(world, file, tensors_to_write(world, content.tensors, content.pieces), content.state,
                     content.texts, options);
  job.write_values = [&](Values& values) { write_pieces(job, values, device, content.pieces); };
  save(job);
}

void save_checkpoint(comm::World& world, device::Runtime& device, const fs::path& file,
                     const CheckpointContent& content, const FileSettings& settings) {
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
  Job job = make_job(world, output.path, std::move(tensors), {}, texts, options);
  job.other_place = "name another --output";
  job.write_values = [&](Values& values) { write_converted(job, values, source); };
  job.temporary = world.broadcast(io::temporary_beside(output.path).string(), 0);
  job.place = [&] { output.place(job.temporary); };
  save(job);
}

}  // namespace llampi::checkpoint
