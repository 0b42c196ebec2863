// SPDX-License-Identifier: Apache-2.0
// Weights in files (a Hugging Face folder or a checkpoint), and conversion between them. No rank ever holds the whole
// model: data is read and written through buffers of a few MiB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/core/log.hpp"
#include "llampi/core/words.hpp"
#include "llampi/io/block_sums.hpp"

namespace llampi::checkpoint {

/// Tensors in files, read in ranges.
class WeightsSource {
 public:
  virtual ~WeightsSource() = default;
  /// The folder or file, for messages.
  virtual std::filesystem::path path() const = 0;
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  /// Elements [begin, begin + elements) of tensors()[tensor], as float32.
  /// @throws UserError if the file is damaged, or the tensor of a dtype that cannot be read
  virtual void read(int tensor, std::int64_t begin, std::int64_t elements, float* values) const = 0;
};

/// FOLDER/model.safetensors, or the files that FOLDER/model.safetensors.index.json names. Headers and index
/// are checked. Left out is what transformers leaves out: with `tied_head` lm_head.weight, and the tables
/// *.rotary_emb.inv_freq of older folders.
/// @throws UserError naming the file and what is wrong with it
std::unique_ptr<WeightsSource> open_safetensors(const std::filesystem::path& folder, bool tied_head);
/// The parameters in a checkpoint. @throws UserError
std::unique_ptr<WeightsSource> open_checkpoint_weights(const std::filesystem::path& file);

/// The files that hold the weights of a Hugging Face folder, the index of several among them; a file, such as a checkpoint, is
/// itself. Whether they are there is not looked at. @throws UserError for an index that is none
std::vector<std::filesystem::path> weights_files(const std::filesystem::path& weights);

/// Strict: every missing, unexpected or misshaped tensor is named. @throws UserError
void check_tensors(const WeightsSource& source, const std::vector<TensorInfo>& expected);

/// Who reads: every rank what it needs, or rank 0 everything, which it sends to all; for file systems that do
/// not like many readers.
enum class WeightsReading : std::uint8_t { each, broadcast };
constexpr auto word_table(WeightsReading) {
  return std::to_array<Word<WeightsReading>>(
      {{WeightsReading::each, "read"}, {WeightsReading::broadcast, "broadcast"}});
}

/// Fills the `model` member of each piece, rounded to nearest even where it is narrower than the file. Strict
/// as check_tensors(). Collective.
/// @param source on every rank; with `broadcast` only rank 0 reads more than headers
/// @param sums if not null, the sums of what this rank has read are added, as float32, RangeSum::dataset being an index into
/// `tensors`: those of all ranks cover what the pieces of all ranks do
/// @throws UserError, or comm::CommonError where no user can help it, the same on all ranks
void load_weights(comm::World& world, device::Runtime& device, const WeightsSource& source,
                  const std::vector<TensorInfo>& tensors, const std::vector<TensorPiece>& pieces,
                  WeightsReading reading = WeightsReading::each, std::vector<io::RangeSum>* sums = nullptr);

/// A checkpoint without optimizer state, of step 0, from weights; every rank reads and writes an equal share.
/// Collective. @throws UserError as save_checkpoint(), and without `overwrite` for a file that is there and
/// was not written by this function
void import_weights(comm::World& world, const WeightsSource& source, const std::filesystem::path& checkpoint,
                    const CheckpointTexts& texts, bool overwrite = false);

struct ExportOptions {
  DType dtype = DType::float32;                  ///< or bfloat16, rounded to nearest even
  std::int64_t max_shard_bytes = 5'000'000'000;  ///< of a file; a tensor is never divided
  bool overwrite = false;  ///< weights in the folder are replaced; if not, they are refused
};

/// model.safetensors or model-0000i-of-0000n.safetensors with the index; the files get their names when all
/// are whole, the index last. Every rank writes an equal share. Collective.
/// @param folder exists; holds no weights yet
/// @throws UserError if it does, for a full disk, missing permission
void export_weights(comm::World& world, const WeightsSource& source, const std::filesystem::path& folder,
                    const ExportOptions& options);

}  // namespace llampi::checkpoint
