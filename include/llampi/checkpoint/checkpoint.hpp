// SPDX-License-Identifier: Apache-2.0
// Checkpoints: one HDF5 file, written by all ranks at once, each its own pieces; logical tensors, so
// that any number of ranks and any strategy can load them. The schema is fixed in docs/formats.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llampi/comm/forward.hpp"
#include "llampi/core/config_error.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/log.hpp"
#include "llampi/core/tensor.hpp"
#include "llampi/core/words.hpp"
#include "llampi/device/runtime.hpp"
#include "llampi/model/llama_config.hpp"

namespace llampi::checkpoint {

struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> shape;  ///< one or two dimensions
  bool optimizer = true;            ///< saving: it has moments (frozen parameters have none)
};

/// Product of the extents. @throws Error if it does not fit
std::int64_t elements_of(const std::vector<std::int64_t>& shape);

/// Elements [begin, begin + elements) of the flattened tensor, in this rank's memory: the device's or the
/// host's, in float32, bfloat16, float16 or int8_blocks. In files they are float32, or moments bfloat16; what is written
/// or read is rounded to nearest even. What is not float32 in host memory passes through a buffer of a few MiB.
struct TensorPiece {
  int tensor = 0;  ///< index into the list of tensors
  std::int64_t begin = 0;
  Tensor model = {};                     ///< one row
  Tensor exp_avg = {}, exp_avg_sq = {};  ///< as long, or both empty: without optimizer state

  std::int64_t elements() const { return model.elements(); }
};

/// What besides the tensors an exact continuation needs.
struct TrainingState {
  std::int64_t step = 0;
  std::int64_t optimizer_steps = 0;  ///< steps with an update (those without valid labels have none)
  std::int64_t tokens_seen = 0;
  std::int64_t samples_consumed = 0;
  std::int64_t epoch = 0;
  std::int64_t seed = 0;
  /// These four: a resume that differs is refused, but for run.resume_with_changes.
  std::int64_t seq_len = 0;
  std::int64_t global_batch = 0;
  std::int64_t data_tokens = 0;  ///< length of the training file
  bool shuffle = true;
  double loss_scale = 0;                   ///< float16: of the next step; 0: none
  std::int64_t loss_scale_good_steps = 0;  ///< without overflow since it changed
};

struct CheckpointTexts {
  std::string model_config;  ///< JSON; empty: not a Llama
  std::string run_config;    ///< ini
  /// Jinja: of the conversations that the run was trained on; empty: none, or the token file does not say
  std::string chat_template = {};
  /// JSON (adapter.hpp): the file holds adapters alone; empty: a whole model
  std::string adapter = {};
};

/// Who moves the values of a file.
enum class FileIo : std::uint8_t {
  direct,  ///< each rank reads its own where they lie; few ranks of each node write, each by itself
  hdf5,  ///< parallel HDF5, all ranks together: any layout, but a rank that fails may leave the others waiting
};
constexpr auto word_table(FileIo) {
  return std::to_array<Word<FileIo>>({{FileIo::direct, "direct"}, {FileIo::hdf5, "hdf5"}});
}
/// @throws UserError where this program cannot do it: its HDF5 is not a parallel one
void require_available(FileIo io);

struct FileSettings;
class NodeRanks;

/// The ranks of a world that write for others, with the communicators for it. The first save makes them, later saves of the
/// same world with the same FileSettings use them again.
class Writers {
 public:
  Writers();
  ~Writers();
  Writers(const Writers&) = delete;
  Writers& operator=(const Writers&) = delete;
  /// Collective where it is the first call. For save_checkpoint(); always of the same world, with the same settings.
  const NodeRanks& of(comm::World& world, const FileSettings& settings);

 private:
  std::unique_ptr<NodeRanks> ranks_;
  const comm::World* world_ = nullptr;
  int groups_ = 0;  ///< of a node
};

/// How a file's bytes are laid out and moved.
struct FileSettings {
  FileIo io = FileIo::direct;
  DType moments = DType::float32;  ///< of stored moments: float32 or bfloat16
  /// Tensors of at least this size begin at a multiple of it: a page, so that ranks that write neighbouring
  /// tensors do not share one, at a cost of at most a page per tensor.
  std::int64_t alignment_bytes = 4096;
  /// On file systems that stripe files over servers (Lustre and others whose stripes MPI-IO knows): stripe count and
  /// stripe size. 0: the folder's setting. These are hints; other file systems ignore them.
  std::int64_t stripes = 0;
  std::int64_t stripe_bytes = 0;
  /// Ranks of a node that write for all of it, in runs that end at stripes; 0: so many that 256 ranks of the job write, or one
  /// of each node. FileIo::hdf5: at most 8 of a node.
  int writers_per_node = 0;
  /// Values pass through a buffer of so many: larger ranges are written and read in several calls.
  std::int64_t transfer_elements = std::int64_t{1} << 20;
  /// Saving: called on each rank whenever a part of its values has been written or synced. May be empty.
  std::function<void()> progress = {};
  /// Saving: kept from save to save. Null: each save makes its own.
  std::shared_ptr<Writers> writers = nullptr;
};

/// A checkpoint that was cut off or changed after it was written; another one may be whole.
class DamagedCheckpoint : public ConfigError {
 public:
  explicit DamagedCheckpoint(Parts parts) : ConfigError(std::move(parts)) {}
  /// @param problem "FILE is damaged: ..."
  explicit DamagedCheckpoint(const std::string& problem)
      : ConfigError({.problem = problem, .remedy = "use another checkpoint"}) {}
  /// Without what to do, and who has seen it.
  const std::string& problem() const { return parts().problem; }
};

/// What a checkpoint is made of. All must stay until it is written.
struct CheckpointData {
  const std::vector<TensorInfo>& tensors;  ///< of the model, the same on all ranks
  const std::vector<TensorPiece>& pieces;  ///< of them, this rank's
  const TrainingState& state;
  const CheckpointTexts& texts;
};

/// Collective. Every element of every tensor must be in exactly one rank's pieces, with moments where the
/// tensor's `optimizer` is set: either for some tensors or (evaluation) for none. Writes FILE.tmp, flushes,
/// renames: under its final name the file is always complete, with checksums of all its content. If it
/// fails on any rank, every rank throws, and no .tmp is left.
/// @throws UserError for a full disk, missing permission or a missing folder
void save_checkpoint(comm::World& world, device::Runtime& device, const std::filesystem::path& file,
                     const CheckpointData& content, const FileSettings& settings = {});

struct LoadSettings {
  /// With `direct`, datasets that are chunked, compressed or converted are read through HDF5, by each rank.
  FileIo io = FileIo::direct;
  /// Moments that the file does not have, because their parameter was frozen when it was written, become zero instead of
  /// being an error; a file without any moments is refused all the same.
  bool missing_moments_are_zero = false;
  Log log = {};  ///< says which way is taken where it is not the one that was asked for
};

/// Collective. Fills the pieces (moments only where they are not empty) and returns the state.
/// Strict: a missing, unexpected or misshaped tensor is an error that names it. What is read is compared with
/// the file's checksums, where it has them (older ones do not), also where no rank reads a block alone.
/// @throws UserError if the file is missing or no llampi checkpoint; DamagedCheckpoint, on all ranks, if it
/// was cut off or changed: then the pieces hold anything
TrainingState load_checkpoint(comm::World& world, device::Runtime& device, const std::filesystem::path& file,
                              const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                              const LoadSettings& settings = {});

/// What is in a checkpoint, read by one process.
struct CheckpointSummary {
  TrainingState state;
  CheckpointTexts texts;
  std::string program_version, git_sha, created;
  std::vector<TensorInfo> tensors;  ///< `optimizer`: its moments are in the file
  bool has_optimizer = false;       ///< of any tensor
  DType moments = DType::float32;   ///< in the file: bfloat16 if any of them is
  bool has_checksums = false;
};
/// Compares all of it with its checksum. @throws UserError, DamagedCheckpoint
CheckpointSummary read_checkpoint_summary(const std::filesystem::path& file);
/// The Llama that a checkpoint holds. `file` is for messages.
/// @throws UserError if it holds the model of another program, or a Llama that is not supported
model::LlamaConfig llama_of(const CheckpointTexts& texts, const std::filesystem::path& file);

/// Reads all of a checkpoint, in one process with a few MiB of memory, and compares it with its checksums.
/// Returns how many bytes of values those cover.
/// @throws DamagedCheckpoint naming the dataset; UserError if the file has no checksums
std::int64_t verify_checkpoint(const std::filesystem::path& file);

/// The kinds of files that `inspect` and `--weights` tell apart. @throws UserError if it is neither
enum class FileKind : std::uint8_t { checkpoint, tokens, huggingface_folder };
FileKind identify(const std::filesystem::path& path);

}  // namespace llampi::checkpoint
