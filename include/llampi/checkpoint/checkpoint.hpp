// Checkpoints: one parallel HDF5 file, written by all ranks at once, each its own pieces; logical tensors, so
// that any number of ranks and any strategy can load them. The schema is fixed in docs/formats.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llampi/comm/comm.hpp"

namespace llampi {

struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> shape;  ///< one or two dimensions
};

/// Elements [begin, begin + elements) of the flattened tensor, in this rank's memory (float32, host).
struct TensorPiece {
  int tensor = 0;  ///< index into the list of tensors
  std::int64_t begin = 0;
  std::int64_t elements = 0;
  float* model = nullptr;
  float* exp_avg = nullptr;  ///< null: without optimizer state
  float* exp_avg_sq = nullptr;
};

/// What besides the tensors an exact continuation needs.
struct TrainingState {
  std::int64_t step = 0;
  std::int64_t optimizer_steps = 0;  ///< steps with an update (those without valid labels have none)
  std::int64_t tokens_seen = 0;
  std::int64_t samples_consumed = 0;
  std::int64_t epoch = 0;
  std::int64_t seed = 0;
  std::int64_t seq_len = 0;  ///< these four: a resume that differs is refused
  std::int64_t global_batch = 0;
  std::int64_t data_tokens = 0;  ///< length of the training file
  bool shuffle = true;
};

struct CheckpointTexts {
  std::string model_config;  ///< JSON
  std::string run_config;    ///< ini
};

/// Collective. Every element of every tensor must be in exactly one rank's pieces. Writes FILE.tmp, flushes,
/// renames: under its own name there is only ever a complete file. If it fails on any rank, every rank
/// throws, and no .tmp is left.
/// @throws UserError for a full disk, missing permission or a missing folder
void save_checkpoint(World& world, const std::filesystem::path& file, const std::vector<TensorInfo>& tensors,
                     const std::vector<TensorPiece>& pieces, const TrainingState& state,
                     const CheckpointTexts& texts);

/// Collective. Fills the pieces (moments only where they are not null) and returns the state.
/// Strict: a missing, unexpected or misshaped tensor is an error that names it.
/// @throws UserError if the file is missing, truncated, or no llampi checkpoint
TrainingState load_checkpoint(World& world, const std::filesystem::path& file,
                              const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces);

/// What is in a checkpoint, read by one process.
struct CheckpointSummary {
  TrainingState state;
  CheckpointTexts texts;
  std::string program_version, git_sha, created;
  std::vector<TensorInfo> tensors;
  bool has_optimizer = false;
};
CheckpointSummary read_checkpoint_summary(const std::filesystem::path& file);

/// The kinds of files that `inspect` and `--weights` tell apart. @throws UserError if it is neither
enum class FileKind : std::uint8_t { checkpoint, tokens, huggingface_folder };
FileKind identify(const std::filesystem::path& path);

/// checkpoints/step-00000100.h5
std::filesystem::path checkpoint_path(const std::filesystem::path& run_dir, std::int64_t step);
/// Complete checkpoints of a run folder, oldest first (by step in the name).
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run_dir);
/// Deletes all but the newest `keep` (at least 1) checkpoints and left-over .tmp files. One rank calls it.
void prune_checkpoints(const std::filesystem::path& run_dir, int keep);

}  // namespace llampi
