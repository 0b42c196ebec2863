// SPDX-License-Identifier: Apache-2.0
// The dynamic loss scale of float16: gradients are multiplied by it while they are float16, so that small
// ones do not vanish; what overflows is found in the gradient norm, which all ranks share.
#pragma once

#include <cstdint>

namespace llampi::optim {

/// As torch.amp.GradScaler: after an overflow, the step is left out and the scale is halved; after
/// `kGrowthInterval` good steps in a row it is doubled. It stays where float32, in which gradients are scaled
/// and unscaled, holds both it and its reciprocal with full precision.
struct LossScaler {
  static constexpr double kInitialScale = 65536;
  static constexpr double kSmallestScale = 0x1p-126;
  static constexpr double kLargestScale = 0x1p126;
  static constexpr std::int64_t kGrowthInterval = 2000;

  double scale = kInitialScale;
  std::int64_t good_steps = 0;  ///< in a row, since `scale` was last updated

  /// After each step, also one that was left out.
  void update(bool overflow);
};

}  // namespace llampi::optim
