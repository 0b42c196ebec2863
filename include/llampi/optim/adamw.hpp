// SPDX-License-Identifier: Apache-2.0
// What AdamW needs besides the shard: its constants, and the numbers of a step.
#pragma once

#include "llampi/device/operations.hpp"

namespace llampi::optim {

/// Constants of AdamW (Loshchilov & Hutter, arXiv 1711.05101), as torch.optim.AdamW has them.
struct AdamWConstants {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
};

/// Those of update number `step`, from 1.
device::UpdateScalars scalars_of_update(const AdamWConstants& constants, std::int64_t step,
                                        double learning_rate);

/// Scalars of one optimizer step, in device memory: a step that was captured can be replayed with other
/// values. It is copied as a [1, kStepScalars] float64, followed by the loss sum of each micro-batch.
struct StepScalars {
  double inverse_tokens = 0;  ///< loss_scale / valid labels of the global batch
  double loss_scale = 1;      ///< gradients are this much too large until clip_coefficient takes it out again
  device::UpdateScalars update;
  device::Fp8Counts fp8 = {};             ///< of this rank's casts
  std::int32_t gradient_maximum[2] = {};  ///< the first is model::LayerContext::gradient_maximum
};
inline constexpr std::int64_t kStepScalars = sizeof(StepScalars) / sizeof(double);

/// What follows them: the sums of the token losses of this rank's micro-batches. The loss layer adds to them.
inline double* loss_sums_of(StepScalars* scalars) {
  return static_cast<double*>(static_cast<void*>(scalars + 1));
}

}  // namespace llampi::optim
