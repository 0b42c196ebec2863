// SPDX-License-Identifier: Apache-2.0
// The limits of a device: its matrix products at the shapes of a step and at a large square, and its copies.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/options.hpp"
#include "llampi/device/device.hpp"

namespace llampi::bench {

/// A weight of the model, multiplied alone.
struct ProductTime {
  std::string name;                        ///< qkv, output, gate_up, down, head
  std::int64_t rows = 0, out = 0, in = 0;  ///< tokens at a time, and the weight
  std::int64_t forward_calls = 0;          ///< in a step, without recomputation
  double forward_seconds = 0;              ///< x weight^T, of a call
  double backward_seconds = 0;             ///< dy weight and dy^T x, of a call

  double forward_flops() const;
  double seconds_per_step() const {
    return static_cast<double>(forward_calls) * (forward_seconds + backward_seconds);
  }
  double flops_per_step() const { return 3 * static_cast<double>(forward_calls) * forward_flops(); }
};

struct Fp8Limits;  // fp8.hpp

struct Limits {
  std::vector<ProductTime> products;
  double square_flops = 0;                    ///< per second, of a square product
  double copy_bandwidth = 0;                  ///< bytes read and written per second
  std::shared_ptr<const Fp8Limits> fp8 = {};  ///< null: not measured

  double product_seconds() const;  ///< of a step
  double product_flops() const;    ///< per second, of a step's products
};

/// To be called last: the device's shared workspace is gone afterwards.
/// @param logits_bytes of a chunk of rows of the head
/// @param fp8 whether the device multiplies in 8 bits, and is to
/// @param fp8_blocks likewise with scales of blocks
Limits measure_limits(device::Device& device, DType dtype, const Options& options, std::int64_t layers,
                      std::int64_t logits_bytes, bool fp8, bool fp8_blocks);

}  // namespace llampi::bench
