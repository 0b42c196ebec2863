// SPDX-License-Identifier: Apache-2.0
// A device's products in 8 bits at the shapes of a step, and what goes before them.
#pragma once

#include <string>
#include <vector>

#include "gpu/noise.hpp"
#include "gpu/products.hpp"

namespace llampi::bench {

/// Of the same weight and tokens as one of Limits::products, with float8_e4m3fn for what is multiplied forward,
/// float8_e5m2 for gradients. In seconds of a call.
struct Fp8ProductTime {
  std::string name;
  double flops = 0;            ///< of each of the three
  double forward_seconds = 0;  ///< x weight^T, with fast accumulation where each has one scale
  double dx_seconds = 0;       ///< dy weight, into the dtype of activations
  double dweight_seconds =
      0;  ///< dy^T x, into that of gradients, to which all micro-batches but the first add
};

/// Bytes read and written per second, at the shape of the output of `gate_up`, or of what is named.
struct Fp8Bandwidth {
  std::string name;
  double bytes_per_second = 0;
};

struct Fp8Limits {
  std::vector<Fp8ProductTime> products;
  std::vector<Fp8Bandwidth> bandwidths;
};

/// The products that have sides of multiples of 16. The device has a shared workspace.
/// @param in_blocks with scales of tiles and blocks, too
Fp8Limits measure_fp8(device::Device& device, const Noise& noise, DType dtype, const Options& options,
                      const std::vector<ProductTime>& products, bool in_blocks);

}  // namespace llampi::bench
