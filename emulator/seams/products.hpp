// SPDX-License-Identifier: Apache-2.0
// Matrix products on the emulated GPU (device/cuda/product_library.hpp): what tests can ask of them, which
// algorithms are offered and what was asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cuda/product_library.hpp"

namespace llampi::emulator {

constexpr double kCopySeconds = 0.5;  ///< that it takes to copy what is added to the result

struct Algorithm {
  bool runs = true;
  bool out_of_place = true;  ///< the result may be other memory than what is added
  /// Offered where the caller allows it.
  device::cuda::PartialSums partial_sums = device::cuda::PartialSums::in_order;
  std::size_t workspace_bytes = 0;  ///< offered where the caller has so much
  std::uint32_t alignment = 1;      ///< of all addresses, in bytes; offered where the caller promises it
  double seconds = 1e-3;            ///< that it takes
  double seconds_at_first = 0;      ///< that the first run takes which is timed; 0: the same
  bool repeats_its_bits = true;     ///< else the first element is another one in each run
  bool fails = false;               ///< as it is timed
};

/// What is offered from now on, the best first.
void set_algorithms(std::vector<Algorithm> algorithms);
/// Two that take everything, the better one with a workspace.
void set_usual_algorithms();

/// A product that was run.
struct Product {
  Algorithm algorithm;
  device::cuda::ColumnProduct asked;
  bool copies = false;  ///< what is added to the result first
};
/// Since the last call of this function.
std::vector<Product> take_products();
/// How often algorithms were asked for, since the last call of this function.
int take_searches();

}  // namespace llampi::emulator
