// SPDX-License-Identifier: Apache-2.0
// Tensors of any floating-point dtype on any device, as numbers of the host: for comparing devices.
#pragma once

#include <vector>

#include "llampi/device/runtime.hpp"

namespace llampi::selfcheck {

using Numbers = std::vector<double>;

/// Each number as `dtype` has it, rounded to nearest even.
Numbers rounded(Numbers numbers, DType dtype);
void upload_numbers(device::Runtime& device, const Numbers& numbers, Tensor target);
Numbers download_numbers(device::Runtime& device, Tensor source);
/// ||values - judged|| / ||judged||, or ||values|| where the judged ones are all zero; NaN if any is.
double distance(const Numbers& values, const Numbers& judged);

}  // namespace llampi::selfcheck
