// SPDX-License-Identifier: Apache-2.0
// A micro-batch in host memory, as `data` makes it and the engine uploads it: the counterpart of Batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llampi::device {

/// One block of int32, so that it travels in one copy: T tokens, T labels, T positions, T + 1 segment
/// offsets.
class HostBatch {
 public:
  HostBatch() = default;
  explicit HostBatch(std::int64_t tokens)
      : tokens_(tokens), values_(static_cast<std::size_t>(elements(tokens))) {}

  static constexpr std::int64_t elements(std::int64_t tokens) { return 4 * tokens + 1; }

  std::int64_t token_count() const { return tokens_; }
  std::span<std::int32_t> tokens() { return part(0, tokens_); }
  std::span<std::int32_t> labels() { return part(1, tokens_); }     ///< -1: no valid label
  std::span<std::int32_t> positions() { return part(2, tokens_); }  ///< within the segment
  std::span<std::int32_t> segment_offsets() {
    return part(3, tokens_ + 1);
  }  ///< the first segments + 1 entries count
  std::span<const std::int32_t> values() const { return values_; }

  std::int64_t segments = 0;
  std::int64_t valid_labels = 0;
  std::int64_t past = 0;  ///< see Batch

 private:
  std::span<std::int32_t> part(std::int64_t index, std::int64_t length) {
    return std::span(values_).subspan(static_cast<std::size_t>(index * tokens_),
                                      static_cast<std::size_t>(length));
  }
  std::int64_t tokens_ = 0;
  std::vector<std::int32_t> values_;
};

}  // namespace llampi::device
