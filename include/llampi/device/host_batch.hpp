// SPDX-License-Identifier: Apache-2.0
// A micro-batch: in host memory, as `data` makes it, and where it was copied to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "llampi/core/integers.hpp"
#include "llampi/core/tensor.hpp"
#include "llampi/device/length_classes.hpp"

namespace llampi::device {

/// The tokens of one micro-batch as the model sees them; the tensors are device memory. A document is a run of
/// tokens that see each other: one of the data within a sequence, or a whole sequence.
struct Batch {
  Tensor tokens;     ///< int32 [1, T], ids
  Tensor labels;     ///< int32 [1, T], ids; -1 where there is no valid label
  Tensor positions;  ///< int32 [1, T], position within the document, for RoPE
  /// int32 [1, T + 1]; the first documents + 1 entries count: document i is [i], ..., [i + 1] - 1
  Tensor cu_seqlens;
  /// int32 [1, 2]: the number of the first sample in the run, see Dropout::first_sample
  Tensor first_sample = {};
  std::int64_t documents = 0;
  std::int64_t kv_len =
      0;  ///< generation: tokens of the sequence before these, whose keys and values are kept
  LengthClasses lengths = {};     ///< of the documents
  std::int64_t valid_labels = 0;  ///< at most; 0: they have not been counted
};

/// One block of int32, so that it travels in one copy: T tokens, T labels, T positions, T + 1 document
/// offsets, the number of the first sample in two words.
class HostBatch {
 public:
  HostBatch() = default;
  explicit HostBatch(std::int64_t tokens)
      : tokens_(tokens), values_(static_cast<std::size_t>(elements(tokens))) {
    set_first_sample(-1);
  }

  static constexpr std::int64_t elements(std::int64_t tokens) { return 4 * tokens + 3; }

  std::int64_t token_count() const { return tokens_; }
  std::span<std::int32_t> tokens() { return part(0, tokens_); }
  std::span<std::int32_t> labels() { return part(1, tokens_); }     ///< -1: no valid label
  std::span<std::int32_t> positions() { return part(2, tokens_); }  ///< within the document
  /// The first documents + 1 entries count.
  std::span<std::int32_t> cu_seqlens() { return part(3, tokens_ + 1); }
  std::span<const std::int32_t> values() const { return values_; }
  /// Its samples have the numbers `number`, `number` + 1, ... in the run; -1, as at first: they belong to no step, so nothing is
  /// dropped of them.
  void set_first_sample(std::int64_t number) {
    const auto bits = static_cast<std::uint64_t>(number);
    const auto words = std::span(values_).last(2);
    words[0] = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits));
    words[1] = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits >> 32));
  }

  /// Makes each `length` tokens, as many as divide all of them, one document: whole sequences.
  void cut_into_documents(std::int64_t length) {
    documents = tokens_ / length;
    for (std::int64_t t = 0; t < tokens_; ++t)
      positions()[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t % length);
    for (std::int64_t s = 0; s <= documents; ++s)
      cu_seqlens()[static_cast<std::size_t>(s)] = static_cast<std::int32_t>(s * length);
  }

  /// Adds empty documents after the last one until there are `most`. @param values a copy of values() of a batch with `documents`
  static void pad_documents(std::span<std::int32_t> values, std::int64_t documents, std::int64_t most) {
    const std::int64_t tokens = (std::ssize(values) - elements(0)) / (elements(1) - elements(0));
    std::ranges::fill(values.subspan(static_cast<std::size_t>(3 * tokens + documents + 1),
                                     static_cast<std::size_t>(most - documents)),
                      static_cast<std::int32_t>(tokens));
  }

  std::int64_t documents = 0;
  std::int64_t valid_labels = 0;
  std::int64_t kv_len = 0;  ///< see Batch

  /// Of the documents that are not empty.
  LengthClasses lengths() const {
    const auto offsets = std::span(values_).subspan(static_cast<std::size_t>(3 * tokens_));
    LengthClasses lengths;
    for (std::size_t i = 0; i < static_cast<std::size_t>(documents); ++i) {
      const std::int64_t length = offsets[i + 1] - offsets[i];
      if (length > 0) ++lengths.documents.at(LengthClasses::of(length));
    }
    return lengths;
  }

  /// Valid labels in quarters of the tokens, rounded up, so that few numbers occur: each has products of its own shape.
  BatchCounts counts() const {
    const std::int64_t quarter = ceil_div(std::max<std::int64_t>(tokens_, 1), 4);
    return {documents, lengths(), std::min(round_up(valid_labels, quarter), tokens_)};
  }

  /// The batch where its values() were copied to: int32 [1, elements(tokens)].
  static Batch view_of(Tensor block, const BatchCounts& counts, std::int64_t kv_len = 0) {
    const std::int64_t tokens = block.cols / 4;
    return {.tokens = block.slice(0, tokens),
            .labels = block.slice(tokens, 2 * tokens),
            .positions = block.slice(2 * tokens, 3 * tokens),
            .cu_seqlens = block.slice(3 * tokens, 4 * tokens + 1),
            .first_sample = block.slice(4 * tokens + 1, block.cols),
            .documents = counts.documents,
            .kv_len = kv_len,
            .lengths = counts.lengths,
            .valid_labels = counts.valid_labels};
  }

 private:
  std::span<std::int32_t> part(std::int64_t index, std::int64_t length) {
    return std::span(values_).subspan(static_cast<std::size_t>(index * tokens_),
                                      static_cast<std::size_t>(length));
  }
  std::int64_t tokens_ = 0;
  std::vector<std::int32_t> values_;
};

/// The most that any of them has.
inline BatchCounts largest_counts(std::span<const HostBatch> batches) {
  BatchCounts most;
  for (const auto& batch : batches) most.raise_to(batch.counts());
  return most;
}

}  // namespace llampi::device
