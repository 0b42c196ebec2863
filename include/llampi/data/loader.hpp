// SPDX-License-Identifier: Apache-2.0
// Batches for one rank, read one step ahead by a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "llampi/data/sampler.hpp"
#include "llampi/data/token_file.hpp"
#include "llampi/data/training_data.hpp"
#include "llampi/device/host_batch.hpp"

namespace llampi::data {

struct BatchOptions {
  std::int64_t seq_len = 0;
  std::int64_t micro_batch = 0;  ///< sequences
  bool document_mask = true;
  std::int64_t vocabulary = 0;  ///< of the model; ids outside are an error
};

/// Fills micro-batch slots with the given samples (-1: an empty slot, all labels invalid, tokens 0).
/// Labels are shifted by one; invalid (-1) where the loss mask of the label's position is 0, or where the
/// label belongs to another document and document_mask is set; where it is not, each
/// sequence is one document of the batch.
/// @throws UserError for a token outside the vocabulary, with file and position
device::HostBatch make_batch(const TokenFile& file, const BatchOptions& options,
                             const std::vector<std::int64_t>& samples);

/// The same with samples of several files; without a file, the slot is empty.
device::HostBatch make_batch(const std::vector<SamplePlace>& samples, const BatchOptions& options);

/// A micro-batch of sequences from elsewhere than a token file. `rows` has seq_len + 1 ids of each: seq_len
/// that the model is given, and the labels, which are the same shifted by one. Each sequence is a document, all
/// labels are valid; ids are not checked.
device::HostBatch make_batch(std::span<const std::int32_t> rows, std::int64_t seq_len);

/// Step by step, the micro-batches of this rank: the one with number n holds samples n * micro_batch + i of the step's
/// global batch, which are numbered through the run (HostBatch::set_first_sample()). The data must outlive the loader.
class Loader {
 public:
  /// @param numbers of this rank's micro-batches among those of a step, in their order
  Loader(const TrainingData& data, const BatchOptions& options, const Sampler& sampler,
         std::vector<std::int64_t> numbers);
  ~Loader();  ///< stops the thread

  /// The micro-batches of step `step`; starts to read step + 1. A failure of the thread is thrown here.
  std::vector<device::HostBatch> next(std::int64_t step);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llampi::data
