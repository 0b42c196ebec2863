// SPDX-License-Identifier: Apache-2.0
// One variant of the kernels: LLAMPI_SIMD is its namespace, and the files that belong to it fill in their
// pointers.
#pragma once

#include "device/cpu/kernels.hpp"

namespace llampi::device::LLAMPI_SIMD {

void add_row_kernels(Kernels& kernels);
void add_update_kernels(Kernels& kernels);
void add_cast_kernels(Kernels& kernels);
void add_random_kernels(Kernels& kernels);

}  // namespace llampi::device::LLAMPI_SIMD
