// SPDX-License-Identifier: Apache-2.0
// The parameters in a checkpoint, for whoever wants them in ranges: each process opens the file by itself.
#include <algorithm>

#include "checkpoint/checksums.hpp"
#include "checkpoint/stored_values.hpp"
#include "checkpoint/tensor_list.hpp"
#include "llampi/checkpoint/staging.hpp"
#include "llampi/checkpoint/weights.hpp"
#include "llampi/core/error.hpp"

namespace llampi::checkpoint {
namespace {

namespace fs = std::filesystem;

class CheckpointWeights final : public WeightsSource {
 public:
  explicit CheckpointWeights(fs::path path) : path_(std::move(path)) {
    reading(path_, [&] {
      const io::Hdf5Lock lock;
      const auto file = io::hdf5::open_file(path_);
      const auto metadata = read_metadata(file.id(), path_);
      tensors_ = metadata.summary.tensors;
      for (auto& tensor : tensors_) tensor.optimizer = false;
      checksums_ = checksums_of(metadata, tensors_);
      stored_ = StoredValues(path_, places_of(file.id(), open_datasets(file.id(), tensors_)), tensors_);
    });
  }

  fs::path path() const override { return path_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  void read(int tensor, std::int64_t begin, std::int64_t elements, float* values) const override {
    const std::span all(values, static_cast<std::size_t>(elements));
    Encoding encoding;
    stored_.read(0, tensor, begin, all, encoding);
    if (checksums_) compare(tensor, begin, all);
  }

 private:
  /// Whole blocks, which is what everybody reads who reads a tensor from its beginning; where a range has
  /// part of a block, the block is read for that.
  void compare(int tensor, std::int64_t begin, std::span<const float> values) const {
    std::vector<io::RangeSum> sums;
    io::add_sums(sums, tensor, begin, values, checksums_.block_elements);
    auto blocks = checksums_.combine(std::move(sums));
    for (const auto& part : blocks.parts) blocks.whole.push_back(sum_of_block(tensor, part.begin));
    require_right(path_, checksums_, blocks.whole);
  }

  /// Of the block that this element lies in.
  io::RangeSum sum_of_block(int tensor, std::int64_t element) const {
    const std::int64_t block = checksums_.block_elements, begin = element / block * block;
    const std::int64_t end = begin + std::min(block, elements_of(tensors_[tensor].shape) - begin);
    io::RangeSum sum{tensor, 0, begin, end - begin};
    std::vector<float> values(static_cast<std::size_t>(std::min(end - begin, kTransferElements)));
    Encoding encoding;
    for (std::int64_t at = begin; at < end;) {
      const auto part = std::span(values).first(std::min(values.size(), static_cast<std::size_t>(end - at)));
      const auto elements = static_cast<std::int64_t>(part.size());
      sum.crc = io::crc32_of(stored_.read(0, tensor, at, part, encoding), sum.crc);
      at += elements;
    }
    return sum;
  }

  fs::path path_;
  std::vector<TensorInfo> tensors_;
  StoredValues stored_;
  Checksums checksums_;
};

}  // namespace

std::unique_ptr<WeightsSource> open_checkpoint_weights(const fs::path& file) {
  return std::make_unique<CheckpointWeights>(file);
}

}  // namespace llampi::checkpoint
