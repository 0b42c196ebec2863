// SPDX-License-Identifier: Apache-2.0
// Counts, in weights that are read, what is not finite.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "llampi/checkpoint/weights.hpp"
#include "llampi/comm/forward.hpp"
#include "llampi/core/log.hpp"

namespace llampi::checkpoint {

/// Passes on what another source has.
class FiniteWeights final : public WeightsSource {
 public:
  explicit FiniteWeights(std::unique_ptr<WeightsSource> source) : source_(std::move(source)) {}

  std::filesystem::path path() const override { return source_->path(); }
  const std::vector<TensorInfo>& tensors() const override { return source_->tensors(); }
  void read(int tensor, std::int64_t begin, std::int64_t elements, float* values) const override;

  /// Warns of NaN and infinities in what all ranks have read. Collective. @param name of the weights, for the warning
  void warn(comm::World& world, const std::string& name, const Log& log) const;

 private:
  std::unique_ptr<WeightsSource> source_;
  mutable std::mutex mutex_;             // of what follows
  mutable std::int64_t not_finite_ = 0;  ///< values that this rank has read
  mutable std::int64_t first_ = kNone;   ///< the tensor with the first of them
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
};

}  // namespace llampi::checkpoint
